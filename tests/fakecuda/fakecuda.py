"""The stand-in for libcuda.so.1: a GPU for tests, played by threads of this machine.

Device memory is host memory, a stream is a thread, and a kernel is the engine's own, compiled for
the SIMT target (``native/gpu/kernel/target_simt.h``): each thread of each block is a thread. So
whatever pycoll does with a GPU runs here, bit for bit, between processes too. What the driver
refuses is refused with its codes; what it leaves undefined is refused or noted in the log. It tells
nothing about speed, and of memory ordering only what ThreadSanitizer sees in the same source
(tests/simt).

A test that is marked ``fake_cuda`` runs in a process of its own that has loaded it, with this
module's `load` done; the marker's arguments are the options. A rank in a process that the test
starts has it by :func:`environment`::

    @pytest.mark.fake_cuda(devices=2)
    def test_sum() -> None:
        x = fakecuda.Array.of(np.arange(10.0))
        stream = fakecuda.Stream()
        ...
        stream.synchronize()
        assert x.get().sum() == 45
        assert "cuMemAlloc" not in [call.name for call in fakecuda.calls()]

The options are those of `fakecuda_library.environment`.

What it does not have: pools, managed memory, textures, fabric handles, parts of reserved ranges,
events for other processes, the runtime API (so cupy and torch do not run on it), external graph
nodes.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from fakecuda_library import SONAME, Logged, calls, environment, lack, library, remarks

__all__ = ["Logged", "calls", "environment", "lack", "library", "remarks"]  # and all that is below

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
INVALID_DEVICE, INVALID_CONTEXT, MAP_FAILED, ALREADY_MAPPED = 101, 201, 205, 208
INVALID_HANDLE, ILLEGAL_STATE, NOT_FOUND, NOT_READY = 400, 401, 500, 600
ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, LAUNCH_FAILED = 700, 701, 719
ALREADY_REGISTERED, NOT_REGISTERED, COOPERATIVE_TOO_LARGE = 712, 713, 720
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_MERGE = 900, 901, 902
CAPTURE_UNMATCHED, CAPTURE_UNJOINED, CAPTURE_ISOLATION = 903, 904, 905
CAPTURE_IMPLICIT, CAPTURED_EVENT, CAPTURE_WRONG_THREAD = 906, 907, 908
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  #: modes of capture


class CudaError(Exception):
    """A function of the driver said no."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} = {code}")
        self.code = code


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(str(library() / SONAME))


def cu(name: str, *arguments: Any) -> None:
    """Call a function of the driver; CudaError unless it succeeds."""
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise CudaError(name, code)


def load(log: Path | None = None, **options: object) -> None:
    """Give this process the stand-in, and this thread the context of GPU 0."""
    os.environ.update(environment(log, **options))
    cu("cuInit", 0)
    use(0)


def use(device: int) -> None:
    """Make a GPU's primary context current in this thread."""
    context = c_void_p()
    cu("cuDevicePrimaryCtxRetain", byref(context), device)
    cu("cuCtxSetCurrent", context)


def fail(what: str) -> None:
    """Make calls fail from now on: as the option FAIL, counted from here."""
    _driver().fakecuda_fail(what.encode())


def guard() -> None:
    """Have this process die from now on if a thread of the host touches memory of a GPU.

    Kernels may, and copies; and so may a NIC whose driver has registered it before.

    Raises:
        OSError: The processor has no memory protection keys.
    """
    if number := _driver().fakecuda_guard():
        raise OSError(number, f"memory protection keys: {os.strerror(number)}")


def switched() -> tuple[int, int]:
    """Return how many units this process has had folded by a switch, and stored to all GPUs."""
    counts = (c_uint64 * 2)()
    _driver().fakecuda_switched(counts)
    return counts[0], counts[1]


class Memory:
    """An allocation on the current GPU, freed with the last of what lies in it."""

    def __init__(self, nbytes: int) -> None:
        address = c_uint64()
        cu("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        self.address, self.nbytes = address.value, nbytes
        self._pid = os.getpid()

    def free(self) -> None:
        """Free it now."""
        if self.address:
            cu("cuMemFree_v2", c_uint64(self.address))
            self.address = 0

    def __del__(self) -> None:
        if getattr(self, "address", 0) and self._pid == os.getpid():
            _driver().cuMemFree_v2(c_uint64(self.address))


class Array:
    """An array on the stand-in's GPU, as cupy's are seen by others.

    Args:
        shape: Its shape; the order of its elements is C's.
        dtype: numpy's.
        memory: An allocation in which it lies; its own if not given.
        offset: Where in that, in bytes.
        typestr: What to say of elements that numpy has not got.
    """

    def __init__(
        self,
        shape: int | tuple[int, ...],
        dtype: Any = np.float32,
        memory: Memory | None = None,
        offset: int = 0,
        typestr: str = "",
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape, dtype=int))
        self.nbytes = self.size * self.dtype.itemsize
        self.memory = memory or Memory(max(self.nbytes + offset, 1))
        self.offset = offset
        self.typestr = typestr or self.dtype.str
        assert offset + self.nbytes <= self.memory.nbytes

    @classmethod
    def of(cls, values: np.ndarray, memory: Memory | None = None, offset: int = 0) -> Array:
        """Return a copy of a numpy array."""
        array = cls(values.shape, values.dtype, memory, offset)
        array.set(values)
        return array

    @property
    def ptr(self) -> int:
        """Its address."""
        return self.memory.address + self.offset

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.ptr, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> Array:
        """Return a part of the first dimension, in the same memory."""
        first, last, step = part.indices(self.shape[0])
        assert step == 1
        row = self.nbytes // max(self.shape[0], 1)
        shape = (max(last - first, 0), *self.shape[1:])
        return Array(shape, self.dtype, self.memory, self.offset + first * row, self.typestr)

    def get(self) -> np.ndarray:
        """Copy it to the host, once the default stream may: other streams are not waited for."""
        out = np.empty(self.shape, self.dtype)
        if self.nbytes:
            cu(
                "cuMemcpyDtoH_v2",
                c_void_p(out.ctypes.data),
                c_uint64(self.ptr),
                c_size_t(out.nbytes),
            )
        return out

    def set(self, values: np.ndarray) -> None:
        """Copy from the host."""
        values = np.ascontiguousarray(values, self.dtype)
        assert values.shape == self.shape
        if self.nbytes:
            cu(
                "cuMemcpyHtoD_v2",
                *(c_uint64(self.ptr), c_void_p(values.ctypes.data), c_size_t(values.nbytes)),
            )


class Stream:
    """A stream on the current GPU; by default it does not wait for the default stream."""

    def __init__(self, priority: int = 0, *, blocking: bool = False) -> None:
        handle = c_void_p()
        cu("cuStreamCreateWithPriority", byref(handle), c_uint(not blocking), c_int(priority))
        self.ptr = handle.value or 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def synchronize(self) -> None:
        """Wait until it has done all that it was given."""
        cu("cuStreamSynchronize", c_void_p(self.ptr))

    def done(self) -> bool:
        """Say whether it has."""
        code = _driver().cuStreamQuery(c_void_p(self.ptr))
        if code not in (SUCCESS, NOT_READY):
            raise CudaError("cuStreamQuery", code)
        return bool(code == SUCCESS)

    def wait(self, event: Event) -> None:
        """Begin what it is given from now on after the event."""
        cu("cuStreamWaitEvent", c_void_p(self.ptr), c_void_p(event.ptr), c_uint(0))

    def close(self) -> None:
        """Give it up; what it was given is still done."""
        cu("cuStreamDestroy_v2", c_void_p(self.ptr))


class Event:
    """A place in a stream's order."""

    def __init__(self, *, timing: bool = False) -> None:
        handle = c_void_p()
        cu("cuEventCreate", byref(handle), c_uint(0 if timing else 2))
        self.ptr = handle.value or 0

    def record(self, stream: Stream) -> Event:
        """Put it behind what the stream has been given."""
        cu("cuEventRecord", c_void_p(self.ptr), c_void_p(stream.ptr))
        return self

    def synchronize(self) -> None:
        """Wait until it is reached."""
        cu("cuEventSynchronize", c_void_p(self.ptr))

    def done(self) -> bool:
        """Say whether it is."""
        code = _driver().cuEventQuery(c_void_p(self.ptr))
        if code not in (SUCCESS, NOT_READY):
            raise CudaError("cuEventQuery", code)
        return bool(code == SUCCESS)

    def milliseconds_since(self, other: Event) -> float:
        """Return the time between two events."""
        out = c_float()
        cu("cuEventElapsedTime", byref(out), c_void_p(other.ptr), c_void_p(self.ptr))
        return out.value


class Graph:
    """What `capture` has captured."""

    def __init__(self, handle: int) -> None:
        self.ptr = handle
        executable = c_void_p()
        cu("cuGraphInstantiateWithFlags", byref(executable), c_void_p(handle), c_uint64(0))
        self.executable = executable.value or 0

    def launch(self, stream: Stream) -> None:
        """Replay it."""
        cu("cuGraphLaunch", c_void_p(self.executable), c_void_p(stream.ptr))

    def close(self) -> None:
        """Give it up."""
        cu("cuGraphExecDestroy", c_void_p(self.executable))
        cu("cuGraphDestroy", c_void_p(self.ptr))


@contextmanager
def capture(stream: Stream, mode: int = GLOBAL) -> Iterator[list[Graph]]:
    """Capture what the stream is given; the graph is in the list afterwards."""
    out: list[Graph] = []
    cu("cuStreamBeginCapture_v2", c_void_p(stream.ptr), c_int(mode))
    graph = c_void_p()
    try:
        yield out
    except BaseException:
        _driver().cuStreamEndCapture(c_void_p(stream.ptr), byref(graph))
        raise
    cu("cuStreamEndCapture", c_void_p(stream.ptr), byref(graph))
    out.append(Graph(graph.value or 0))


def image(**functions: Mapping[str, int | str]) -> bytes:
    """Return a module with functions of its own: their registers, shared, threads, and like.

    ``like`` names the kernel that runs, ``fakecuda_busy`` if none is given.
    """
    lines = [
        " ".join([name, *(f"{key}={value}" for key, value in said.items())])
        for name, said in functions.items()
    ]
    return "\n".join(["fakecuda", *lines, ""]).encode() + b"\0"


class Module:
    """Functions: those of an image, or all that the stand-in has."""

    def __init__(self, data: bytes = b"any\0") -> None:
        handle = c_void_p()
        cu("cuModuleLoadData", byref(handle), ctypes.c_char_p(data))
        self.ptr = handle.value or 0

    def function(self, name: str, *, lazy: bool = False) -> int:
        """Return the handle of a function; ``lazy``: it may be loaded as late as it is launched."""
        handle, registers = c_void_p(), c_int()
        cu("cuModuleGetFunction", byref(handle), c_void_p(self.ptr), name.encode())
        if not lazy:
            cu("cuFuncGetAttribute", byref(registers), c_int(4), handle)
        return handle.value or 0

    def close(self) -> None:
        """Unload it."""
        cu("cuModuleUnload", c_void_p(self.ptr))


class _Config(ctypes.Structure):
    _fields_ = (
        ("blocks", c_uint * 3),
        ("threads", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("nattributes", c_uint),
    )


class Attribute(ctypes.Structure):
    """An attribute of a launch."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int * 16))


def launch(
    function: int,
    *arguments: Any,
    stream: Stream | None = None,
    blocks: int = 1,
    threads: int = 1,
    shared: int = 0,
    attributes: Mapping[int, int] | None = None,
) -> None:
    """Launch a function with ctypes values as its arguments."""
    given = attributes or {}
    rows = (Attribute * max(len(given), 1))()
    for row, (key, value) in zip(rows, given.items(), strict=False):
        row.id, row.value[0] = key, value
    config = _Config((blocks, 1, 1), (threads, 1, 1), shared, stream.ptr if stream else 0)
    config.attributes, config.nattributes = ctypes.addressof(rows), len(given)
    addresses = (c_void_p * max(len(arguments), 1))(*map(ctypes.addressof, arguments))
    cu("cuLaunchKernelEx", byref(config), c_void_p(function), addresses, None)
