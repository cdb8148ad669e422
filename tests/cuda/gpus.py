"""Ranks whose GPU is the stand-in for libcuda, and arrays in its memory.

Each rank is a process that loads the stand-in by itself: the process of the tests never does. The
stand-in's device memory is the host's, so that numpy can fill it and look at it; pycoll is handed
objects that have nothing but `__cuda_array_interface__`. Kernels are the stand-in's own, so nothing
is compiled for them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import collective_checks as checks
import fakecuda
import numpy as np
import pytest

import pycoll
from pycoll.communicator import Communicator

#: What a test module on the stand-in is marked with.
MARKS = [
    pytest.mark.native,
    pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-"),
]


def use(log: Path | None = None, **options: object) -> None:
    """Give this process the stand-in, and kernels that are not compiled."""
    fakecuda.load(log, **options)
    from pycoll.runtime.cuda import compile, kernels

    kernels.compile = SimpleNamespace(  # type: ignore[attr-defined]
        cubin=lambda dtype, op, capability, cache: b"any\0",
        transfer_cubin=lambda capability, cache: b"any\0",
        entry=compile.entry,
        TRANSFER=compile.TRANSFER,
        require=lambda capability, cache: None,
        multimem=lambda image: True,
    )


def ranks(size: int, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Run a function as ranks with GPUs; returns what each returns."""
    fakecuda.library()  # built by the parent, for all of them
    timeout = options.pop("timeout", 200)
    check = options.pop("check", True)

    def rank() -> Any:
        use(**options)
        return fn(*args)

    return pycoll.spawn(rank, size, timeout=timeout, check=check)


class Seen:
    """Memory of a GPU as pycoll is shown it."""

    def __init__(self, host: np.ndarray[Any, Any], **more: Any) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (host.ctypes.data if host.size else 0, False),
            "strides": None,
            "version": 3,
        } | more


def empty(shape: Any, dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """Return an array in the memory of the current GPU, as numpy sees it on the stand-in."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    memory = fakecuda.Memory(max(1, count * kind.itemsize))
    place = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    place.memory = memory  # type: ignore[attr-defined]
    return np.frombuffer(place, kind, count).reshape(shape)


def of(values: Any) -> Seen:
    """Return a copy of values in the memory of the current GPU."""
    host = np.asarray(values)
    there = empty(host.shape, host.dtype)
    there[...] = host
    return Seen(there)


def host(x: Any) -> Any:
    """Return the memory of an array on the stand-in's GPU as numpy sees it."""
    if isinstance(x, Seen):
        return x.host
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return x
    dtype, shape = np.dtype(interface["typestr"]), interface["shape"]
    count = int(np.prod(shape))
    place = (ctypes.c_char * (count * dtype.itemsize)).from_address(interface["data"][0] or 1)
    place.owner = x  # type: ignore[attr-defined]
    return np.frombuffer(place, dtype, count).reshape(shape) if count else np.empty(shape, dtype)


class _Done:
    """A Work whose result is waited for on the host, as numpy sees it."""

    def __init__(self, work: pycoll.Work) -> None:
        self._work = work

    def wait(self) -> Any:
        self._work.wait()
        return host(self._work.synchronize())


class DeviceChecks(checks.Checks):
    """The checks of collectives, with arrays on the GPU, on a stream."""

    def __init__(self, comm: Communicator, stream: fakecuda.Stream) -> None:
        super().__init__(comm)
        self.stream = stream

    def arrays(self, case: Any, within: bool, offset: bool, make: Any = empty) -> Any:
        """The same, in the GPU's memory."""
        return super().arrays(case, within, offset, make)

    def call(self, case: Any, x: Any, out: Any, **more: Any) -> Any:
        """Call the method with objects that pycoll knows nothing of but where they lie."""
        mine = None if x is None else Seen(x)
        result = mine if out is x else None if out is None else Seen(out)
        with self.comm.on_stream(self.stream):
            got = super().call(case, mine, result, **more)
        if more.get("async_op"):
            return _Done(got)
        self.stream.synchronize()
        return host(got)
