"""The stand-in for libcuda: streams and events."""

from __future__ import annotations

import threading
from ctypes import byref, c_int, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, Event, Memory, Module, Stream, cu
from fakecuda_checks import Gate, Row, code_of

fake_cuda = pytest.mark.fake_cuda


@fake_cuda
def test_a_stream_keeps_its_order() -> None:
    row, stream = Row(), Stream()
    for number in range(100):
        row.add(number, stream)
    stream.synchronize()
    assert row.numbers() == list(range(100))


@fake_cuda
def test_streams_run_beside_each_other() -> None:
    first, second, row = Stream(), Stream(), Row()
    gate = Gate(first)
    row.add(1, first)
    row.add(2, second)
    second.synchronize()  # although the first has not ended
    assert not first.done()
    assert row.numbers() == [2]
    gate.open()
    first.synchronize()
    assert first.done()
    assert row.numbers() == [2, 1]


@fake_cuda
def test_all_blocks_of_all_launches_run_at_once() -> None:
    """Kernels of several ranks that wait for one another must all get on."""
    word = Array.of(np.zeros(1, np.uint64))
    module, streams = Module(), [Stream() for _ in range(4)]
    wait, count = module.function("fakecuda_await"), module.function("fakecuda_count")
    for stream in streams[:3]:
        fakecuda.launch(wait, c_uint64(word.ptr), c_uint64(8), stream=stream, blocks=16, threads=4)
    fakecuda.launch(count, c_uint64(word.ptr), stream=streams[3], blocks=2, threads=4)
    for stream in streams:
        stream.synchronize()


@fake_cuda
def test_an_event_orders_streams() -> None:
    first, second, row = Stream(), Stream(), Row()
    event = Event()
    second.wait(event)  # never recorded: it is no work, and nobody waits
    assert event.done()
    gate = Gate(first)
    row.add(1, first)
    event.record(first)
    row.add(3, first)
    second.wait(event)
    row.add(2, second)
    assert not event.done()
    event.record(second)  # what was waited for is the event as it was then
    gate.open()
    event.synchronize()
    assert event.done()
    first.synchronize()
    assert row.numbers().index(1) < row.numbers().index(2)


@fake_cuda
def test_times() -> None:
    stream, start, end = Stream(), Event(timing=True), Event(timing=True)
    assert code_of(lambda: end.milliseconds_since(start)) == fakecuda.INVALID_HANDLE
    start.record(stream)
    gate = Gate(stream)
    end.record(stream)
    assert code_of(lambda: end.milliseconds_since(start)) == fakecuda.NOT_READY
    gate.open()
    end.synchronize()
    assert end.milliseconds_since(start) >= 0
    without = Event().record(stream)
    assert code_of(lambda: without.milliseconds_since(start)) == fakecuda.INVALID_HANDLE


@fake_cuda
def test_the_default_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    blocking, free, row = Stream(blocking=True), Stream(), Row()
    default = Stream()
    default.ptr = 0
    gate = Gate(blocking)
    row.add(1, blocking)
    row.add(2, default)
    row.add(3, blocking)
    row.add(4, free)
    free.synchronize()
    assert row.array.memory  # reading by the default stream would wait: look at the memory itself
    seen = (c_uint64 * 5).from_address(row.array.ptr)
    assert list(seen)[:2] == [1, 4]
    gate.open()
    blocking.synchronize()
    assert row.numbers() == [4, 1, 2, 3]


@fake_cuda
def test_a_destroyed_stream_does_what_it_was_given() -> None:
    stream, row = Stream(), Row()
    gate = Gate(stream)
    row.add(1, stream)
    event = Event().record(stream)
    stream.close()
    assert code_of(stream.synchronize) == fakecuda.INVALID_HANDLE
    gate.open()
    cu("cuCtxSynchronize")  # waits for it too
    assert event.done()
    assert row.numbers() == [1]


@fake_cuda
def test_priorities_are_clamped() -> None:
    least, greatest, out = c_int(), c_int(), c_int()
    cu("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
    assert (least.value, greatest.value) == (0, -5)
    for wanted, want in ((-3, -3), (-100, -5), (100, 0)):
        cu("cuStreamGetPriority", c_void_p(Stream(wanted).ptr), byref(out))
        assert out.value == want


@fake_cuda
def test_freeing_waits_for_the_device() -> None:
    stream, memory = Stream(), Memory(8)
    gate = Gate(stream)
    thread = threading.Thread(target=lambda: (fakecuda.use(0), memory.free()))
    thread.start()
    assert not stream.done()
    assert memory.address
    gate.open()
    thread.join()
    assert stream.done()
    assert not memory.address
