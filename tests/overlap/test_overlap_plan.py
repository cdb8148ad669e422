"""overlap.plan and overlap.shape without a GPU: kernels are numbers, the machine is a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cupys import RawKernel
from simulated import Simulated

from pycoll import overlap
from pycoll.errors import UnavailableError, UsageError
from pycoll.overlap.advice import Advice, confirm
from pycoll.overlap.limits import limits
from pycoll.overlap.occupancy import Footprint, resident

HOPPER = (9, 0)


@pytest.mark.parametrize(
    "kernel",
    [
        overlap.Footprint(256, 32),
        RawKernel(32),
        SimpleNamespace(n_regs=32, metadata=SimpleNamespace(shared=0)),
    ],
    ids=["numbers", "cupy", "triton"],
)
def test_plan_of_every_kind_of_kernel(kernel: Any) -> None:
    advice = overlap.plan(kernel, (16, 16), capability=HOPPER)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (8, 5, 38_016, True)


def test_plan_counts_the_shared_memory_of_the_launch() -> None:
    kernel = RawKernel(168)
    advice = overlap.plan(kernel, 384, shared_mem=200 << 10, capability=HOPPER)
    assert (advice.natural, advice.fits) == (1, False)
    kernel = RawKernel(40, shared=100 << 10)
    assert overlap.plan(kernel, 256, capability=HOPPER).natural == 2


@pytest.mark.parametrize("block", [0, -1, (), "256", 1.5, (16, None), (32, 0)])
def test_a_block_that_is_none(block: Any) -> None:
    kernel = overlap.Footprint(256, 32)
    if block == ():
        assert overlap.plan(kernel, block, capability=HOPPER).natural == 32  # one thread
        return
    with pytest.raises(UsageError, match="want its threads"):
        overlap.plan(kernel, block, capability=HOPPER)


@pytest.mark.parametrize("kernel", [17, print, None, "gemm"])
def test_a_kernel_that_cannot_be_asked(kernel: Any) -> None:
    with pytest.raises(UsageError, match="no kernel that can be asked what it takes"):
        overlap.plan(kernel, 256, capability=HOPPER)


def test_a_shaped_kernel_is_launched_with_padding_and_otherwise_alike() -> None:
    kernel = RawKernel(32)
    shaped = overlap.shape(kernel, 3, capability=HOPPER)
    shaped((100,), (256,), (1, 2))
    assert kernel.launches == [((100,), (256,), (1, 2), 57_472)]
    assert kernel.max_dynamic_shared_size_bytes == 57_472
    assert kernel.preferred_shared_memory_carveout == 100
    assert "at most 3 blocks per SM" in repr(shaped)


@pytest.mark.parametrize("cap", range(1, 9))
@pytest.mark.parametrize("asked", [0, 1000, 20_000])
def test_a_shaped_launch_keeps_to_its_cap(cap: int, asked: int) -> None:
    kernel, sm = RawKernel(32, shared=64), limits(HOPPER)
    shaped = overlap.shape(kernel, cap, capability=HOPPER)
    shaped((1,), (8, 8, 4), (), shared_mem=asked)
    given = kernel.launches[0][3]
    assert given == asked + shaped.padding(256, asked)
    assert 0 < resident(Footprint(256, 32, 64, given), sm) <= cap


def test_a_kernel_below_the_cap_is_left_alone() -> None:
    kernel = RawKernel(168)
    overlap.shape(kernel, 2, capability=HOPPER)((1,), (256,), (), shared_mem=64)
    assert kernel.launches == [((1,), (256,), (), 64)]
    assert kernel.max_dynamic_shared_size_bytes == 48 << 10
    assert kernel.preferred_shared_memory_carveout == -1


def test_what_cannot_be_shaped() -> None:
    with pytest.raises(UsageError, match="max_blocks_per_sm is 0, want at least 1"):
        overlap.shape(RawKernel(32), 0, capability=HOPPER)
    with pytest.raises(UsageError, match=r"max_blocks_per_sm is 1\.5, want"):
        overlap.shape(RawKernel(32), 1.5, capability=HOPPER)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no num_regs: want a cupy RawKernel"):
        overlap.shape(print, 2, capability=HOPPER)
    with pytest.raises(UsageError, match="cannot be launched"):
        overlap.shape(RawKernel(80), 1, capability=HOPPER)((1,), (1024,), ())
    # Where two blocks of the most shared memory fit, none can be kept alone.
    with pytest.raises(UsageError, match=r"no padding makes that 1: a block may have 49,152 B"):
        overlap.Shaped(RawKernel(16), 1, small_blocks())((1,), (32,), ())


def small_blocks() -> Any:
    from dataclasses import replace

    return replace(limits(HOPPER), shared_per_block=48 << 10)


def test_a_launch_is_shaped_as_planned() -> None:
    gpu, kernel = Simulated(), RawKernel(32)
    work = overlap.Launch(kernel, (1000,), (256,), (7,))

    def collective(stream: Any) -> None:
        gpu.collective(1e-6)(stream)

    found = overlap.measure(work, collective, repeats=1, gpu=gpu)
    assert list(found.ways) == ["sequential", "concurrent", "priority", "shaped", "both"]
    assert found.note.startswith("plan: 8 blocks per SM, capped at 5 by 38,016 B of padding")
    assert [launch[3] for launch in kernel.launches] == [0, 0, 0, 0, 38_016, 38_016] * 2


def test_a_launch_that_needs_no_shape_or_cannot_have_one_is_not_shaped() -> None:
    gpu = Simulated()
    work = overlap.Launch(RawKernel(168), (10,), (384,), (), shared_mem=0)
    found = overlap.measure(work, gpu.collective(1e-6), repeats=1, gpu=gpu)
    assert list(found.ways) == ["sequential", "concurrent", "priority"]
    assert "never fits" in str(found)


def test_a_computation_of_unknown_kind_is_not_shaped() -> None:
    gpu = Simulated()
    found = overlap.measure(gpu.compute(1e-3), gpu.collective(1e-3), repeats=1, gpu=gpu)
    assert list(found.ways) == ["sequential", "concurrent", "priority"]
    assert "no shaped form was given" in found.note


def test_the_driver_has_the_last_word() -> None:
    sm, kernel = limits(HOPPER), Footprint(256, 32)
    advice = Advice(8, 5, 38_016, True, "")

    class Driver:
        def __init__(self, natural: int, room: int) -> None:
            self.natural, self.most = natural, room

        def resident(self, handle: int, threads: int, dynamic: int) -> int:
            assert (handle, threads, dynamic) == (11, 256, 0)
            return self.natural

        def room(self, handle: int, blocks: int, threads: int) -> int:
            assert (handle, blocks, threads) == (11, 6, 256)
            return self.most

    agreed = confirm(advice, kernel, Driver(8, 37_888), 11, sm)
    assert agreed == advice
    other = confirm(advice, kernel, Driver(7, 0), 11, sm)
    assert (other.natural, other.capped, other.fits) == (7, 7, False)
    assert "the driver counts 7 blocks per SM, where 8 were reckoned" in other.reason
    more = confirm(advice, kernel, Driver(8, 40_000), 11, sm)
    assert more.pad_bytes == 40_128
    never = confirm(advice, kernel, Driver(8, 227 << 10), 11, sm)
    assert (never.capped, never.fits) == (8, False)
    assert "padding cannot cap them" in never.reason


@pytest.mark.native
def test_without_a_gpu_it_refuses_and_says_what_mends_it() -> None:
    from pycoll.runtime.native import cuda

    if not cuda.missing():
        pytest.skip("this machine has a GPU")
    for call in (
        lambda: overlap.plan(Footprint(256, 32), 256),
        lambda: overlap.shape(RawKernel(32), 2),
        lambda: overlap.measure(print, print),
    ):
        with pytest.raises(UnavailableError, match=r"overlap needs a GPU: .*NVIDIA"):
            call()


def test_what_a_block_takes() -> None:
    metadata = SimpleNamespace(shared=4096, num_warps=4)
    compiled = SimpleNamespace(n_regs=40, metadata=metadata, packed_metadata=(4, 1, 4096))
    assert overlap.footprint(compiled) == Footprint(128, 40, 0, 4096)
    assert overlap.footprint(RawKernel(32, 64), (16, 16)) == Footprint(256, 32, 64)
    assert overlap.footprint(RawKernel(32), 64, shared_mem=8) == Footprint(64, 32, 0, 8)
    assert overlap.footprint(Footprint(96, 24)) == Footprint(96, 24)
    with pytest.raises(UsageError, match=r"block is None, and kernel is .*; want the threads of"):
        overlap.footprint(RawKernel(32))
