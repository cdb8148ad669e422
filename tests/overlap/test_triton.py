"""Compiled Triton kernels, shaped: over the stand-in for the driver, which refuses what is not."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from ctypes import c_uint32, c_uint64
from typing import Any

import fakecuda
import numpy as np
import pytest
from tritons import CompiledKernel, loaded

from pycoll import overlap
from pycoll.errors import UnavailableError, UsageError
from pycoll.overlap.limits import limits
from pycoll.overlap.occupancy import Footprint, resident
from pycoll.overlap.result import WAYS

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda(threads=32)]


class Job:
    """An array on the GPU, and a stream that is the current one."""

    def __init__(self) -> None:
        self.given = np.random.default_rng(7).random(100, np.float32)
        self.x = fakecuda.Array.of(self.given)
        self.stream = fakecuda.Stream()
        self.args = c_uint64(self.x.ptr), c_uint64(100), c_uint32(3)

    def check(self, launches: int) -> None:
        """The kernel does x / 2 + 1 three times."""
        self.stream.synchronize()
        wanted = self.given
        for _ in range(3 * launches):
            wanted = wanted / np.float32(2) + np.float32(1)
        assert (self.x.get() == wanted).all()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job()
    monkeypatch.setitem(sys.modules, "triton", loaded(made.stream.ptr))
    yield made
    fakecuda.cu("cuCtxSynchronize")


def shared_of_launches() -> list[str]:
    return [
        call.arguments.split(", ")[3]
        for call in fakecuda.calls()
        if call.name == "cuLaunchKernelEx" and call.result == 0
    ]


@pytest.mark.parametrize("version", ["3.5", "3.9"])
def test_a_kernel_is_launched_with_padding_and_otherwise_alike(job: Job, version: str) -> None:
    kernel = CompiledKernel(num_warps=1, shared=1024, version=version)
    shaped = overlap.shape(kernel, 2, capability=(9, 0))
    shaped[(5, 2)](*job.args)
    job.check(1)
    padding = shaped.padding(32)
    # Just more than a third of 228 KiB, without what the system takes and the kernel has.
    assert padding == 77_952 - 1024 - 1024
    assert kernel.launches == [((5, 2, 1), job.stream.ptr, 1024 + padding)]
    assert shared_of_launches() == [str(1024 + padding)]
    assert resident(Footprint(32, 32, 0, 1024 + padding), limits((9, 0))) == 2
    assert kernel.packed_metadata[2] == kernel.metadata.shared == 1024, "the kernel is as it was"


def test_the_driver_refuses_so_much_unless_it_was_asked_for(job: Job) -> None:
    """Triton asks only where the kernel itself has more than 48 KiB."""
    kernel = CompiledKernel(shared=1024)
    packed = (1, 1, 60 << 10)
    with pytest.raises(fakecuda.CudaError, match="cuLaunchKernelEx = 1"):
        kernel.run(1, 1, 1, 0, kernel.function, packed, None, None, None, *job.args)
    overlap.shape(kernel, 3, capability=(9, 0))[(1,)](*job.args)
    asked = [call.arguments for call in fakecuda.calls() if call.name == "cuFuncSetAttribute"]
    assert [given.split(", ")[1:] for given in asked] == [["8", "57472"], ["9", "100"]]
    job.check(1)


def test_a_kernel_that_has_more_itself(job: Job) -> None:
    kernel = CompiledKernel(shared=50 << 10)
    shaped = overlap.shape(kernel, 2, capability=(9, 0))
    shaped((3,), 32, job.args)
    shaped((3,), (32, 1, 1), job.args)
    job.check(2)
    assert shared_of_launches() == [str((50 << 10) + shaped.padding(32))] * 2


def test_one_that_needs_none_is_left_alone(job: Job) -> None:
    kernel = CompiledKernel(shared=1024)
    overlap.shape(kernel, 32, capability=(9, 0))[(4,)](*job.args)
    job.check(1)
    assert shared_of_launches() == ["1024"]
    assert "cuFuncSetAttribute" not in [call.name for call in fakecuda.calls()]


def test_it_is_not_unloaded_while_it_is_used(job: Job) -> None:
    kernel = CompiledKernel()
    before = CompiledKernel.unloaded
    shaped = overlap.shape(kernel, 2, capability=(9, 0))
    shaped[(1,)](*job.args)
    del shaped
    assert CompiledKernel.unloaded == before
    kernel.run(1, 1, 1, job.stream.ptr, kernel.function, (1, 1, 0), None, None, None, *job.args)
    job.check(2)
    del kernel
    gc.collect()  # its launcher is a method of it
    assert CompiledKernel.unloaded == before + 1


def test_hooks_are_called(job: Job) -> None:
    called: list[Any] = []
    hooks = sys.modules["triton"].knobs.runtime
    hooks.launch_enter_hook = lambda about: called.append(("enter", about))
    hooks.launch_exit_hook = lambda about: called.append(("exit", about))
    overlap.shape(CompiledKernel(), 2, capability=(9, 0))[(1,)](*job.args)
    assert called == [("enter", {"x": 1}), ("exit", {"x": 1})]


def test_a_kernel_that_is_not_loaded_yet_is_planned() -> None:
    kernel = CompiledKernel(registers=32, num_warps=8)
    assert not hasattr(kernel, "n_regs")
    advice = overlap.plan(kernel, 256)
    assert (advice.natural, advice.capped, advice.pad_bytes, advice.fits) == (8, 5, 38_016, True)


def test_a_launch_is_shaped_as_planned(job: Job) -> None:
    # 228 KiB / 17.5 KiB: 13 blocks, which leave half a KiB, and the collective's block wants 3.
    kernel = CompiledKernel(registers=40, shared=(16 << 10) + 512)
    work = overlap.Launch(kernel, (4,), 32, job.args)
    advice = overlap.plan(kernel, 32)
    assert (advice.natural, advice.capped, advice.fits) == (13, 12, True)
    capped = work.shaped(3, limits((9, 0)))
    work()
    capped()
    job.check(2)
    first, second = map(int, shared_of_launches())
    assert first == (16 << 10) + 512
    assert resident(Footprint(32, 40, 0, second), limits((9, 0))) == 3


def test_measure_shapes_it(job: Job) -> None:
    # 32 blocks of a warp leave no block: the collective's is the 33rd.
    kernel = CompiledKernel(registers=32)
    work = overlap.Launch(kernel, (2,), 32, job.args)
    found = overlap.measure(work, lambda stream: None, repeats=1, sms=8)
    assert list(found.ways) == list(WAYS)[:-1]
    assert found.note.startswith("plan: 32 blocks per SM, capped at ")
    padding = overlap.plan(kernel, 32).pad_bytes
    # Alone, in three ways and in a part as it is, in two with padding; all of it twice.
    assert sorted(map(int, shared_of_launches())) == [0] * 10 + [padding] * 4
    job.check(14)


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"clusters of 2 \(num_ctas\), want 1"):
        overlap.shape(CompiledKernel(num_ctas=2), 2, capability=(9, 0))
    with pytest.raises(UsageError, match=r"kernel is .*, want a compiled Triton kernel for shaped"):
        overlap.shape(raw(), 2, capability=(9, 0))[(1,)]


def test_another_block_is_refused(job: Job) -> None:
    shaped = overlap.shape(CompiledKernel(), 2, capability=(9, 0))
    with pytest.raises(
        UsageError, match=r"block is \(64,\), and the Triton kernel was compiled for 32"
    ):
        shaped((1,), 64, job.args)


def test_a_triton_that_launches_otherwise(job: Job) -> None:
    kernel = CompiledKernel(shared=512)
    kernel.packed_metadata = (512, 1, 1)
    with pytest.raises(UnavailableError, match=r"with \(512, 1, 1\), want its shared memory, 512"):
        overlap.shape(kernel, 2, capability=(9, 0))[(1,)](*job.args)


def raw() -> Any:
    from cupys import RawKernel

    return RawKernel(32)


def test_the_real_class_has_what_the_stand_in_has() -> None:
    pytest.importorskip("triton")
    from triton.compiler import CompiledKernel as Real

    text = inspect.getsource(Real)
    for name in ("packed_metadata", "metadata", "function", "module", "n_regs", "_run"):
        assert f"self.{name}" in text, name
    assert isinstance(Real.run, property)
    given = list(inspect.signature(Real.launch_metadata).parameters)
    assert given == ["self", "grid", "stream", "args"]
    launched = " ".join(inspect.getsource(Real.__getitem__).split())
    assert (
        "self.run(grid[0], grid[1], grid[2], stream, self.function, self.packed_metadata, "
        "launch_metadata," in launched
    )
    from triton.backends.nvidia import compiler

    packed = " ".join(inspect.getsource(compiler).split())
    assert "return ( metadata.num_warps, metadata.num_ctas, metadata.shared," in packed
