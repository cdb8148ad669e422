"""overlap.partition: SMs of their own for the collective, over the stand-in for the driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import c_size_t, c_uint64, c_void_p
from pathlib import Path

import fakecuda
import pytest
from simulated import Simulated

from pycoll import overlap
from pycoll.errors import ClosedError, UnavailableError, UsageError
from pycoll.overlap.green import require_room
from pycoll.overlap.limits import limits
from pycoll.overlap.occupancy import Footprint

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]

#: All of the shared memory that an SM has: nothing runs beside a block of it.
FULL = 227 << 10


def names(of: Callable[[str], bool] = lambda name: True) -> list[str]:
    return [call.name for call in fakecuda.calls() if of(call.name)]


def until(said: str) -> None:
    """Wait until the stand-in has said so."""
    deadline = time.monotonic() + 30
    while not any(line.startswith(said) for line in fakecuda.remarks()):
        assert time.monotonic() < deadline, f"nobody said {said!r}: {fakecuda.remarks()}"


class Held:
    """A computation that takes all SMs that it can have, until it is let go."""

    def __init__(self) -> None:
        from pycoll.runtime.native import cuda

        kernels = {
            "hold": {"like": "fakecuda_await", "registers": 16},
            "count": {"like": "fakecuda_count"},
        }
        module = fakecuda.Module(fakecuda.image(**kernels))
        self.word, self.counted = fakecuda.Array(1, "u8"), fakecuda.Array(1, "u8")
        self.word.set(self.word.get() * 0)
        self.counted.set(self.counted.get() * 0)
        self.function, self.count = module.function("hold"), module.function("count")
        cuda.function_dynamic(0, self.function, FULL)

    def on(self, stream: fakecuda.Stream, blocks: int = 132) -> None:
        arguments = c_uint64(self.word.ptr), c_uint64(1)
        fakecuda.launch(self.function, *arguments, stream=stream, blocks=blocks, shared=FULL)

    def collective(self, stream: fakecuda.Stream) -> None:
        fakecuda.launch(self.count, c_uint64(self.counted.ptr), stream=stream, blocks=4)

    def let_go(self) -> None:
        side = fakecuda.Stream()
        where = c_uint64(self.word.ptr), 1, c_size_t(8), c_void_p(side.ptr)
        fakecuda.cu("cuMemsetD8Async", *where)
        side.synchronize()


@pytest.mark.fake_cuda(places=1)
def test_a_computation_on_all_sms_keeps_the_collective_waiting() -> None:
    held, main, side = Held(), fakecuda.Stream(), fakecuda.Stream(-5)
    held.on(main)
    until("placed: hold on 0 to 131")
    held.collective(side)
    until("no room: count")
    assert not side.done(), "the higher priority does not help where nothing ends"
    held.let_go()
    side.synchronize()
    assert held.counted.get()[0] == 4


@pytest.mark.fake_cuda(places=1)
def test_on_sms_of_its_own_it_runs_beside_it() -> None:
    held = Held()
    with overlap.partition(16) as part:
        assert part.sms == (116, 16)
        assert repr(part) == "<overlap.Partition of cuda:0: 116 SMs and 16>"
        held.on(part.computation)  # in more blocks than it has SMs
        until("placed: hold on 16 to 131")
        held.collective(part.communication)
        part.communication.synchronize()
        assert not fakecuda.Stream.done(part.computation)  # type: ignore[arg-type]
        assert held.counted.get()[0] == 4
        assert "placed: count on 0 to 3" in fakecuda.remarks()
        held.let_go()
    assert not [line for line in fakecuda.remarks() if line.startswith("no room")]


@pytest.mark.fake_cuda(places=1)
def test_with_room_left_on_every_sm_it_runs_beside_it() -> None:
    """What shaping does: a block of the computation leaves a little on each SM."""
    from pycoll.runtime.native import cuda

    held, main, side = Held(), fakecuda.Stream(), fakecuda.Stream()
    less = FULL - (4 << 10)
    cuda.function_dynamic(0, held.function, less)
    arguments = c_uint64(held.word.ptr), c_uint64(1)
    fakecuda.launch(held.function, *arguments, stream=main, blocks=132, shared=less)
    until("placed: hold")
    held.collective(side)
    side.synchronize()
    assert not main.done()
    held.let_go()
    main.synchronize()


def test_what_is_made_is_destroyed_streams_first() -> None:
    with overlap.partition(8) as part:
        streams = part.computation, part.communication
        assert [stream.priority for stream in streams] == [0, -5]
        assert [stream.sms for stream in streams] == [124, 8]
    destroyed = names(lambda name: name in ("cuStreamDestroy", "cuGreenCtxDestroy"))
    assert destroyed == ["cuStreamDestroy", "cuGreenCtxDestroy"] * 2
    part.close()  # again: nothing
    assert names().count("cuGreenCtxDestroy") == 2
    assert fakecuda.remarks() == []
    assert repr(part) == "<overlap.Partition of cuda:0: closed>"
    for stream in streams:
        with pytest.raises(ClosedError, match=r"overlap\.partition: it is closed"):
            stream.synchronize()


def test_what_fails_halfway_leaves_nothing() -> None:
    fakecuda.fail("cuGreenCtxCreate:2")
    with pytest.raises(UnavailableError, match=r"overlap\.partition: cuGreenCtxCreate for 8 mult"):
        overlap.partition(8)
    assert names().count("cuGreenCtxDestroy") == 1
    fakecuda.fail("cuGreenCtxStreamCreate:1")
    with pytest.raises(UnavailableError, match="cuGreenCtxStreamCreate for 8 multiprocessors"):
        overlap.partition(8)
    assert names().count("cuGreenCtxCreate") == names().count("cuGreenCtxDestroy") + 1 == 3
    overlap.partition(8).close()
    assert fakecuda.remarks() == []


@pytest.mark.parametrize("sms", [1, 7, 12, 125, 128, 132, 65536])
def test_sms_that_cannot_be_parted(sms: int) -> None:
    wanted = f"cannot part {sms} of its 132 multiprocessors: want a multiple of 8, from 8 to 120"
    with pytest.raises(UsageError, match=wanted):
        overlap.partition(sms)


@pytest.mark.parametrize("sms", [0, -8, 65537, 1.5, None, "16"])
def test_what_is_no_number_of_sms(sms: object) -> None:
    with pytest.raises(UsageError, match=r"overlap\.partition: sms is"):
        overlap.partition(sms)  # type: ignore[arg-type]


@pytest.mark.fake_cuda(limits=1)
def test_a_driver_that_tells_how_they_can_be_parted() -> None:
    with overlap.partition(120) as part:
        assert part.sms == (12, 120)


@pytest.mark.fake_cuda(green=0)
def test_a_gpu_without_green_contexts() -> None:
    with pytest.raises(UnavailableError, match=r"cuGreenCtxCreate for 8 .*operation not supported"):
        overlap.partition(8)
    found = overlap.measure(print_nothing, print_nothing, repeats=1, sms=8)
    assert "partition" not in found.ways
    assert "no partition: overlap.partition: cuGreenCtxCreate" in found.note


def print_nothing(stream: object) -> None:
    """Enqueue nothing."""


ASK = """
import sys
sys.path[:0] = {paths!r}
import fakecuda
fakecuda.load()
from pycoll import overlap
try:
    with overlap.partition(16) as part:
        print(part.sms)
        from ctypes import c_uint64
        at = fakecuda.Array(1, "u8")
        count = fakecuda.Module().function("fakecuda_count")
        fakecuda.launch(count, c_uint64(at.ptr), stream=part.communication)
        print([call.arguments for call in fakecuda.calls() if "Launch" in call.name][0][-6:])
except Exception as error:
    print(error)
"""


def older(folder: Path, *lacks: str) -> list[str]:
    """What a process says whose driver has no such functions."""
    library = (fakecuda.library() / fakecuda.SONAME).read_bytes()
    for name in lacks:
        library = library.replace(f"\0{name}\0".encode(), f"\0xx{name[2:]}\0".encode())
    (folder / fakecuda.SONAME).write_bytes(library)
    where = str(folder)
    known = os.environ | {"LD_LIBRARY_PATH": where, "FAKECUDA_LIBRARY": where}
    here = Path(__file__).resolve().parents[1]
    paths = [str(here / "fakecuda"), str(here)]
    return subprocess.run(
        [sys.executable, "-c", ASK.format(paths=paths)],
        env=known | {"FAKECUDA_LOG": str(folder / "log")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_drivers_that_are_older(tmp_path: Path) -> None:
    # CUDA 12.4 makes such streams in another way.
    assert older(tmp_path, "cuGreenCtxStreamCreate") == ["(116, 16)", "16 SMs"]
    assert older(tmp_path, "cuDevSmResourceSplitByCount", "cuGreenCtxCreate") == [
        "overlap.partition: libcuda.so.1 has no cuDevSmResourceSplitByCount: install NVIDIA's "
        "driver 550 or later (CUDA 12.4)"
    ]


def test_it_is_not_closed_within() -> None:
    with overlap.partition(8) as part:
        within = pytest.raises(UsageError, match=r"close\(\) within a with block of one of its")
        with part.communication as stream, stream, within:
            part.close()
        assert not stream.entered


def test_device_and_communicator() -> None:
    with pytest.raises(UsageError, match="GPU 1: there are 1"):
        overlap.partition(8, device=1)
    with pytest.raises(UsageError, match=r"overlap\.partition: comm is 7, want a pycoll"):
        overlap.partition(8, 7)


def test_a_part_that_cannot_hold_a_launch() -> None:
    """Its blocks wait for one another: those that find no place would be waited for in vain."""
    hopper, block = limits((9, 0)), Footprint(256, 80, 2048)
    require_room(11, block, 32, hopper)  # three on each
    with pytest.raises(
        UsageError,
        match=r"8 SMs hold 24 blocks of the collective at once \(3 each\), and it launches up to "
        r"32, which wait for one another; want at least 11 SMs, or PYCOLL_CUDA_BLOCKS=24",
    ):
        require_room(8, block, 32, hopper)


def test_partition_is_a_way_to_measure() -> None:
    found = overlap.measure(print_nothing, print_nothing, repeats=2, sms=16, copies=print_nothing)
    assert list(found.ways) == ["sequential", "concurrent", "priority", "partition", "copies"]
    assert "partition: 116 SMs compute, 16 communicate" in found.note
    assert names().count("cuGreenCtxDestroy") == 2
    assert fakecuda.remarks() == []


def test_the_clock_of_a_partition() -> None:
    """Both begin at once, each on its part; the computation takes longer on fewer SMs."""
    gpu = Simulated()
    compute, collective = gpu.compute(100e-6), gpu.collective(40e-6)
    found = overlap.measure(compute, collective, repeats=3, gpu=gpu, sms=16)
    assert found.seconds("partition") == pytest.approx(100e-6 * 132 / 116)
    assert gpu.closed
    with pytest.raises(UsageError, match="cannot part 13"):
        overlap.measure(compute, collective, repeats=3, gpu=gpu, sms=13)


def test_how_sms_can_be_parted() -> None:
    from pycoll.runtime.native import cuda

    assert cuda.multiprocessors(0) == (132, 8, 8)
