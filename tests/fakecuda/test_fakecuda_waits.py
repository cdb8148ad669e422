"""The stand-in for libcuda: what waits for kernels that run, as the driver may.

Where memory or code comes or goes the driver may wait until the device has done all that it was
given. A kernel that waits for what the caller would do next then never ends.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, Memory, Module, Stream, cu
from fakecuda_checks import code_of

fake_cuda = pytest.mark.fake_cuda
TIMED_OUT = 702


class Spinning:
    """A kernel that runs until it is told to end, and all that is there before it runs."""

    def __init__(self) -> None:
        self.word, self.other = Array.of(np.zeros(1, np.uint64)), Memory(4096)
        self.host = c_void_p()
        cu("cuMemHostAlloc", byref(self.host), c_size_t(4096), c_uint(0))
        self.page = np.zeros(8192, np.uint8)
        self.module, self.spare = Module(), Module()
        names = ("await", "count", "append")
        self.functions = {
            name: self.module.function(f"fakecuda_{name}", lazy=True) for name in names
        }
        self.stream, self.free = Stream(), Stream()
        given = c_uint64(self.word.ptr), c_uint64(1)
        fakecuda.launch(self.functions["await"], *given, stream=self.stream)

    def end(self) -> None:
        """Let it end."""
        ctypes.c_uint64.from_address(self.word.ptr).value = 1
        self.stream.synchronize()


CALLS: dict[str, Callable[[Spinning], object]] = {
    "cuMemAlloc": lambda s: Memory(8),
    "cuMemFree": lambda s: s.other.free(),
    "cuMemHostAlloc": lambda s: cu("cuMemHostAlloc", byref(c_void_p()), c_size_t(8), c_uint(0)),
    "cuMemFreeHost": lambda s: cu("cuMemFreeHost", s.host),
    "cuMemHostRegister": lambda s: cu(
        "cuMemHostRegister_v2", c_void_p(s.page.ctypes.data), c_size_t(4096), c_uint(0)
    ),
    "cuModuleLoadData": lambda s: Module(),
    "cuModuleUnload": lambda s: s.spare.close(),
    "cuLaunchKernelEx": lambda s: fakecuda.launch(
        s.functions["count"], c_uint64(s.other.address), stream=s.free
    ),
}


@pytest.mark.parametrize("name", list(CALLS))
@fake_cuda(patience=1)
def test_a_call_that_waits_for_a_kernel_that_waits_is_named(name: str) -> None:
    spinning = Spinning()
    assert code_of(lambda: CALLS[name](spinning)) == TIMED_OUT
    [remark] = fakecuda.remarks()
    assert remark.startswith(f"deadlock: {name} waits for kernels that run")
    spinning.end()


@pytest.mark.parametrize("name", list(CALLS))
@fake_cuda
def test_it_goes_on_when_the_kernel_has_ended(name: str) -> None:
    spinning = Spinning()
    # A thread that waits in the driver takes nothing from others.
    waiting = threading.Thread(target=_in_context, args=(CALLS[name], spinning))
    waiting.start()
    spinning.end()
    waiting.join(60)
    assert not waiting.is_alive()
    assert fakecuda.remarks() == []


def _in_context(call: Callable[[Spinning], object], spinning: Spinning) -> None:
    fakecuda.use(0)
    call(spinning)


@fake_cuda(patience=1)
def test_a_function_whose_attributes_were_asked_for_is_loaded() -> None:
    spinning = Spinning()
    function, out = spinning.functions["count"], c_int()
    spinning.end()
    cu("cuFuncGetAttribute", byref(out), c_int(4), c_void_p(function))
    ctypes.c_uint64.from_address(spinning.word.ptr).value = 0
    given = c_uint64(spinning.word.ptr), c_uint64(1)
    fakecuda.launch(spinning.functions["await"], *given, stream=spinning.stream)
    CALLS["cuLaunchKernelEx"](spinning)
    spinning.free.synchronize()
    # Another function of the same module is not.
    append = spinning.functions["append"]
    given = c_uint64(spinning.other.address), c_uint64(1)
    launch = lambda: fakecuda.launch(append, *given, stream=spinning.free)  # noqa: E731
    assert code_of(launch) == TIMED_OUT
    spinning.end()


@fake_cuda(patience=1)
def test_modules_that_are_loaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    spinning = Spinning()
    CALLS["cuLaunchKernelEx"](spinning)
    spinning.free.synchronize()
    assert fakecuda.remarks() == []
    spinning.end()
