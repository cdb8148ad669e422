"""overlap over the driver's own functions: the stand-in for libcuda counts blocks, keeps time."""

from __future__ import annotations

from typing import Any

import fakecuda
import pytest

from pycoll import overlap
from pycoll.errors import UsageError
from pycoll.overlap.gpu import Gpu
from pycoll.overlap.limits import TABLE
from pycoll.overlap.occupancy import Footprint, resident
from pycoll.runtime.native import cuda

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]

KERNELS = {
    "elementwise": {"registers": 32, "threads": 1024},
    "gemm": {"registers": 168, "threads": 256, "shared": 40 << 10},
    "persistent": {"registers": 168, "threads": 384},
    "wide": {"registers": 255, "threads": 128},
}


@pytest.fixture
def handles() -> dict[str, int]:
    module = cuda.module(0, fakecuda.image(**KERNELS))
    return {name: cuda.function(0, module, name) for name in KERNELS}


def test_a_gpu_tells_its_limits() -> None:
    gpu = Gpu()
    assert gpu.capability == (9, 0)
    assert gpu.limits == TABLE[9, 0]


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="GPU 7: there are 1"):
        Gpu(7)


def test_kernels_are_planned_as_the_driver_counts(handles: dict[str, int]) -> None:
    advice = overlap.plan(handles["elementwise"], 256)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (8, 5, 38_016, True)
    advice = overlap.plan(handles["gemm"], 256)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (1, 1, 0, True)
    advice = overlap.plan(handles["persistent"], 384)
    assert (advice.natural, advice.fits) == (1, False)


def test_the_padding_holds_by_the_driver(handles: dict[str, int]) -> None:
    advice = overlap.plan(handles["elementwise"], 256)
    cuda.function_dynamic(0, handles["elementwise"], advice.pad_bytes)
    gpu = Gpu()
    assert gpu.resident(handles["elementwise"], 256, advice.pad_bytes) == advice.capped
    assert gpu.resident(handles["elementwise"], 256, advice.pad_bytes - 128) == advice.capped + 1


@pytest.mark.parametrize("threads", [32, 128, 256])
@pytest.mark.parametrize("dynamic", [0, 1000, 8 << 10])
def test_our_arithmetic_is_the_drivers(handles: dict[str, int], threads: int, dynamic: int) -> None:
    gpu = Gpu()
    for name, handle in handles.items():
        if threads > KERNELS[name]["threads"]:
            continue
        block = gpu.function(handle, threads, dynamic)
        assert block.registers == KERNELS[name]["registers"]
        assert gpu.resident(handle, threads, dynamic) == resident(block, gpu.limits), name


def test_the_five_ways_run_on_streams_of_two_priorities() -> None:
    x, y, z = (fakecuda.Memory(1 << 16) for _ in range(3))
    seen: list[tuple[str, int]] = []

    def work(name: str, target: Any) -> Any:
        def enqueue(stream: Any) -> None:
            seen.append((name, stream.priority))
            assert stream.__cuda_stream__() == (0, stream.ptr)
            cuda.fill(0, target.address, 1, target.nbytes, stream.ptr)

        return enqueue

    found = overlap.measure(work("compute", x), work("collective", y), work("shaped", z), repeats=3)
    assert list(found.ways) == ["sequential", "concurrent", "priority", "shaped", "both"]
    assert all(len(times) == 3 and min(times) >= 0 for times in found.ways.values())
    assert {priority for name, priority in seen if name != "collective"} == {0}
    assert {priority for name, priority in seen if name == "collective"} == {0, -5}
    assert found.best in found.ways


def test_a_footprint_is_planned_for_the_gpu_that_is_there() -> None:
    assert overlap.plan(Footprint(256, 32), 256).pad_bytes == 38_016
