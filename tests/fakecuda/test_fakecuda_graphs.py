"""The stand-in for libcuda: what capture allows, and graphs."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, CudaError, Event, Memory, Module, Stream, cu
from fakecuda_checks import Gate, Row, code_of, in_thread, refused, status

fake_cuda = pytest.mark.fake_cuda


@fake_cuda
def test_what_is_captured_runs_when_it_is_launched() -> None:
    stream, row = Stream(), Row()
    with fakecuda.capture(stream) as graphs:
        assert status(stream) == 1
        row.add(1, stream)
        row.add(2, stream)
    assert status(stream) == 0
    assert row.numbers() == []
    for _ in range(3):
        graphs[0].launch(stream)
    stream.synchronize()
    assert row.numbers() == [1, 2] * 3


@fake_cuda
def test_arguments_are_those_of_the_capture() -> None:
    stream, row = Stream(), Row()
    number = c_uint64(5)
    with fakecuda.capture(stream) as graphs:
        fakecuda.launch(row.append, c_uint64(row.array.ptr), number, stream=stream)
    number.value = 6
    graphs[0].launch(stream)
    stream.synchronize()
    assert row.numbers() == [5]


@fake_cuda
def test_streams_join_a_capture_by_events() -> None:
    """A branch of a graph runs beside the others, and its end comes after all."""
    first, second, row = Stream(), Stream(), Row()
    word = Array.of(np.zeros(1, np.uint64))
    module = Module()
    wait, count = module.function("fakecuda_await"), module.function("fakecuda_count")
    fork, join = Event(), Event()
    with fakecuda.capture(first) as graphs:
        row.add(1, first)
        fork.record(first)
        second.wait(fork)
        assert status(second) == 1
        # One waits for the other: they must run at once.
        fakecuda.launch(wait, c_uint64(word.ptr), c_uint64(1), stream=first)
        fakecuda.launch(count, c_uint64(word.ptr), stream=second)
        join.record(second)
        first.wait(join)
        row.add(2, first)
    graphs[0].launch(second)
    second.synchronize()
    assert row.numbers() == [1, 2]
    assert status(second) == 0


@fake_cuda
def test_a_branch_that_is_not_joined() -> None:
    first, second, row = Stream(), Stream(), Row()
    cu("cuStreamBeginCapture_v2", c_void_p(first.ptr), c_int(0))
    second.wait(Event().record(first))
    row.add(1, second)
    graph = c_void_p(1)
    refused(fakecuda.CAPTURE_UNJOINED, "cuStreamEndCapture", c_void_p(first.ptr), byref(graph))
    assert graph.value is None
    row.add(2, second)
    second.synchronize()
    assert row.numbers() == [2]


UNSAFE = {
    "alloc": lambda: Memory(8),
    "host alloc": lambda: cu("cuMemHostAlloc", byref(c_void_p()), c_size_t(8), c_uint(3)),
    "synchronise": lambda: cu("cuCtxSynchronize"),
    "another stream's end": lambda: Stream().synchronize(),
    "an event": lambda: Event().done(),
    "a module": Module,
}


@pytest.mark.parametrize("what", UNSAFE)
@pytest.mark.parametrize("mode", [fakecuda.GLOBAL, fakecuda.THREAD_LOCAL])
@fake_cuda
def test_what_capture_forbids(what: str, mode: int) -> None:
    """It is refused, and the capture is no more: its end says so and gives no graph."""
    stream, row = Stream(), Row()
    cu("cuStreamBeginCapture_v2", c_void_p(stream.ptr), c_int(mode))
    assert code_of(UNSAFE[what]) == fakecuda.CAPTURE_UNSUPPORTED
    assert status(stream) == 2
    with pytest.raises(CudaError) as caught:
        row.add(1, stream)
    assert caught.value.code == fakecuda.CAPTURE_INVALIDATED
    graph = c_void_p(1)
    refused(fakecuda.CAPTURE_INVALIDATED, "cuStreamEndCapture", c_void_p(stream.ptr), byref(graph))
    assert graph.value is None
    assert status(stream) == 0
    assert code_of(UNSAFE[what]) == fakecuda.SUCCESS


@pytest.mark.parametrize(
    ("mode", "of_thread", "want"),
    [
        (fakecuda.GLOBAL, fakecuda.GLOBAL, fakecuda.CAPTURE_UNSUPPORTED),
        (fakecuda.GLOBAL, fakecuda.THREAD_LOCAL, fakecuda.SUCCESS),
        (fakecuda.GLOBAL, fakecuda.RELAXED, fakecuda.SUCCESS),
        (fakecuda.THREAD_LOCAL, fakecuda.GLOBAL, fakecuda.SUCCESS),
        (fakecuda.RELAXED, fakecuda.GLOBAL, fakecuda.SUCCESS),
    ],
)
@fake_cuda
def test_what_capture_forbids_other_threads(mode: int, of_thread: int, want: int) -> None:
    """A thread is bound by others' captures only if both have the mode GLOBAL."""
    stream = Stream()
    kept = []

    def other() -> None:
        exchanged = c_int(of_thread)
        cu("cuThreadExchangeStreamCaptureMode", byref(exchanged))
        assert exchanged.value == fakecuda.GLOBAL
        kept.append(Memory(8))

    cu("cuStreamBeginCapture_v2", c_void_p(stream.ptr), c_int(mode))
    assert in_thread(other) == want
    assert status(stream) == (2 if want else 1)


@fake_cuda
def test_a_relaxed_thread_may_do_all_in_its_own_capture() -> None:
    stream = Stream()
    with fakecuda.capture(stream, fakecuda.RELAXED):
        Memory(8)
    exchanged = c_int(fakecuda.RELAXED)
    cu("cuThreadExchangeStreamCaptureMode", byref(exchanged))
    with fakecuda.capture(stream, fakecuda.GLOBAL):
        Memory(8)
        # but it cannot ask how far a captured stream is.
        assert code_of(stream.done) == fakecuda.CAPTURE_UNSUPPORTED
        assert status(stream) == 2
        code = fakecuda._driver().cuStreamEndCapture(c_void_p(stream.ptr), byref(c_void_p()))
        assert code == fakecuda.CAPTURE_INVALIDATED
        cu("cuStreamBeginCapture_v2", c_void_p(stream.ptr), c_int(0))


@fake_cuda
def test_events_across_the_border_of_a_capture() -> None:
    inside, outside = Stream(), Stream()
    before = Event().record(outside)
    cu("cuStreamBeginCapture_v2", c_void_p(inside.ptr), c_int(0))
    # Waiting for what was recorded outside would be a dependency across the border.
    assert code_of(lambda: inside.wait(before)) == fakecuda.CAPTURE_ISOLATION
    assert status(inside) == 2
    end = (c_void_p(inside.ptr), byref(c_void_p()))
    refused(fakecuda.CAPTURE_INVALIDATED, "cuStreamEndCapture", *end)
    # An event that was last recorded inside can be asked for nothing, even afterwards.
    with fakecuda.capture(inside):
        event = Event().record(inside)
    assert code_of(event.done) == fakecuda.CAPTURED_EVENT
    assert code_of(event.synchronize) == fakecuda.CAPTURED_EVENT
    assert code_of(lambda: outside.wait(event)) == fakecuda.CAPTURED_EVENT
    event.record(outside).synchronize()


@fake_cuda
def test_two_captures_cannot_become_one() -> None:
    first, second = Stream(), Stream()
    cu("cuStreamBeginCapture_v2", c_void_p(first.ptr), c_int(2))
    cu("cuStreamBeginCapture_v2", c_void_p(second.ptr), c_int(2))
    event = Event().record(first)
    assert code_of(lambda: second.wait(event)) == fakecuda.CAPTURE_MERGE
    assert (status(first), status(second)) == (2, 2)


@fake_cuda
def test_where_a_capture_begins_and_ends() -> None:
    stream, out = Stream(), c_void_p()
    handle, begins, ends = c_void_p(stream.ptr), "cuStreamBeginCapture_v2", "cuStreamEndCapture"
    refused(fakecuda.CAPTURE_UNSUPPORTED, begins, c_void_p(0), c_int(0))  # the default stream
    refused(fakecuda.ILLEGAL_STATE, ends, handle, byref(out))
    cu(begins, handle, c_int(0))
    refused(fakecuda.ILLEGAL_STATE, begins, handle, c_int(0))
    end = lambda: cu(ends, handle, byref(out))  # noqa: E731
    assert in_thread(end) == fakecuda.CAPTURE_WRONG_THREAD
    refused(fakecuda.CAPTURE_INVALIDATED, ends, handle, byref(out))


@fake_cuda
def test_the_default_stream_beside_a_capture() -> None:
    """It cannot be used while a blocking stream is captured; asking does not end the capture."""
    blocking, row, out = Stream(blocking=True), Row(), c_int()
    default = Stream()
    default.ptr = 0
    with fakecuda.capture(Stream()):
        row.add(1, default)  # not beside a stream that does not wait for it
        assert status(default) == 0
    cu("cuStreamBeginCapture_v2", c_void_p(blocking.ptr), c_int(0))
    refused(fakecuda.CAPTURE_IMPLICIT, "cuStreamIsCapturing", c_void_p(0), byref(out))
    assert status(blocking) == 1
    assert code_of(lambda: row.add(2, default)) == fakecuda.CAPTURE_IMPLICIT
    assert status(blocking) == 2


@fake_cuda
def test_captures_have_numbers() -> None:
    stream, seen = Stream(), []
    for _ in range(2):
        with fakecuda.capture(stream):
            state, number, graph = c_int(), c_uint64(), c_void_p()
            cu(
                "cuStreamGetCaptureInfo_v2",
                *(c_void_p(stream.ptr), byref(state), byref(number), byref(graph), None, None),
            )
            assert state.value == 1
            assert graph.value
            seen.append(number.value)
    assert len(set(seen)) == 2


DESTROY = ctypes.CFUNCTYPE(None, c_void_p)


@fake_cuda
def test_a_graph_keeps_its_objects() -> None:
    """A destructor runs when the graph, what was made of it and what still runs of it are gone."""
    stream, gone, gate = Stream(), threading.Event(), Gate()
    destroy = DESTROY(lambda _: gone.set())
    made = c_void_p()
    cu("cuUserObjectCreate", byref(made), None, destroy, c_uint(1), c_uint(1))
    refused(
        fakecuda.INVALID_VALUE,
        *("cuUserObjectCreate", byref(c_void_p()), None, destroy, c_uint(1), c_uint(0)),
    )
    with fakecuda.capture(stream) as graphs:
        state, graph = c_int(), c_void_p()
        cu(
            "cuStreamGetCaptureInfo_v2",
            *(c_void_p(stream.ptr), byref(state), None, byref(graph), None, None),
        )
        cu("cuGraphRetainUserObject", graph, made, c_uint(1), c_uint(1))
        gate.hold(stream)
    graphs[0].launch(stream)
    graphs[0].close()
    assert not gone.is_set()
    assert not stream.done()
    gate.open()
    stream.synchronize()
    assert gone.wait(60)


@fake_cuda
def test_launches_of_one_graph_follow_one_another() -> None:
    first, second, row = Stream(), Stream(), Row()
    gate = Gate(first)
    with fakecuda.capture(second) as graphs:
        row.add(1, second)
    graphs[0].launch(first)
    graphs[0].launch(second)
    assert not second.done()
    gate.open()
    second.synchronize()
    assert row.numbers() == [1, 1]
