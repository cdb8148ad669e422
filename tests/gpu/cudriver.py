"""What phases and benchmarks want of the driver and pycoll does not: attributes, graphs, VMM."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

from pycoll.runtime.native import cuda

#: CUdevice_attribute, those that gpu phases report.
ATTRIBUTES = {
    "virtual memory management": 102,
    "handles as file descriptors": 103,
    "GPUDirect RDMA with VMM": 110,
    "GPUDirect RDMA": 116,
    "GPUDirect RDMA flush options": 117,
    "GPUDirect RDMA writes ordering": 118,  # 0 none, 100 owner, 200 all devices
    "dma-buf": 124,
    "memory sync domains": 126,
    "fabric handles": 128,
    "multicast": 132,
    "MPS": 133,
}
_RELAXED = 2  #: CUstreamCaptureMode
_POSIX_FD = 1


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class Driver:
    """libcuda.so.1, with the device's primary context current on the calling thread."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._c = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def has(self, name: str) -> bool:
        """Tell whether the library has a function."""
        return hasattr(self._c, name)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            OSError: It failed; says how.
        """
        code = getattr(self._c, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._c.cuGetErrorString(code, ctypes.byref(text))
            raise OSError(f"{name}: {code}: {(text.value or b'?').decode()}")

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the primary context current."""
        self.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def attribute(self, number: int) -> int | None:
        """Return an attribute of the device; None where the driver does not know it."""
        value = ctypes.c_int()
        try:
            self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        except OSError:
            return None
        return value.value

    def exportable(self) -> str:
        """Say whether VMM memory can be made and handed on as a descriptor; empty if it can."""
        wanted = ("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle")
        for name in wanted:
            if not self.has(name):
                return f"no {name}"
        size, handle, fd = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int(-1)
        properties = Properties(1, _POSIX_FD, Location(1, self.device), None, 0, 0, 0)
        at = ctypes.byref(properties)
        try:
            with self.current():
                self.call("cuMemGetAllocationGranularity", ctypes.byref(size), at, 0)
                self.call("cuMemCreate", ctypes.byref(handle), size, at, ctypes.c_uint64(0))
                export = ctypes.byref(fd), handle, _POSIX_FD, ctypes.c_uint64(0)
                try:
                    self.call("cuMemExportToShareableHandle", *export)
                finally:
                    self.call("cuMemRelease", handle)
        except OSError as error:
            return str(error)
        os.close(fd.value)
        return ""


class Graph:
    """What was enqueued on a stream while it was captured; launched as often as wanted."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, ctypes.c_void_p(stream)
        self._graph, self._ready = ctypes.c_void_p(), ctypes.c_void_p()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what is enqueued on the stream inside."""
        with self._driver.current():
            self._driver.call("cuStreamBeginCapture_v2", self._stream, _RELAXED)
        try:
            yield
        finally:
            with self._driver.current():
                end = self._stream, ctypes.byref(self._graph)
                self._driver.call("cuStreamEndCapture", *end)
        with self._driver.current():
            make = ctypes.byref(self._ready), self._graph, ctypes.c_uint64(0)
            self._driver.call("cuGraphInstantiateWithFlags", *make)

    def launch(self, stream: int | None = None) -> None:
        """Enqueue all of it."""
        on = self._stream if stream is None else ctypes.c_void_p(stream)
        with self._driver.current():
            self._driver.call("cuGraphLaunch", self._ready, on)

    def close(self) -> None:
        """Free the graph; what is enqueued still runs."""
        with self._driver.current():
            if self._ready:
                self._driver.call("cuGraphExecDestroy", self._ready)
            if self._graph:
                self._driver.call("cuGraphDestroy", self._graph)
        self._ready, self._graph = ctypes.c_void_p(), ctypes.c_void_p()


def wait(device: int, *streams: int) -> None:
    """Wait on the host for streams."""
    for stream in streams:
        cuda.stream_wait(device, stream)
