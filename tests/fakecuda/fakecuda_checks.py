"""What the tests of the stand-in share: codes, a kernel that waits, a kernel that keeps a row."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import fakecuda
import numpy as np
import pytest
from fakecuda import Array, CudaError, Module, Stream, cu


def refused(code: int, name: str, *arguments: object) -> None:
    with pytest.raises(CudaError) as caught:
        cu(name, *arguments)
    assert caught.value.code == code, caught.value


def code_of(call: Callable[[], object]) -> int:
    try:
        call()
    except CudaError as error:
        return error.code
    return fakecuda.SUCCESS


def in_thread(call: Callable[[], object]) -> int:
    """The code that a call gets in another thread, with the same context."""
    got = []

    def run() -> None:
        fakecuda.use(0)
        got.append(code_of(call))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return got[0]


class Gate:
    """A kernel that waits in a stream until the test opens it."""

    def __init__(self, *streams: Stream) -> None:
        self.word = c_void_p()
        cu("cuMemHostAlloc", byref(self.word), c_size_t(8), c_uint(3))
        ctypes.memset(self.word, 0, 8)
        self.module = Module()
        for stream in streams:
            self.hold(stream)

    def hold(self, stream: Stream) -> None:
        function = self.module.function("fakecuda_await")
        fakecuda.launch(function, c_uint64(self.word.value or 0), c_uint64(1), stream=stream)

    def open(self) -> None:
        ctypes.cast(self.word, ctypes.POINTER(c_uint64))[0] = 1


class Row:
    """Memory to which kernels append numbers."""

    def __init__(self, room: int = 1000) -> None:
        self.array = Array.of(np.zeros(room, np.uint64))
        self.append = Module().function("fakecuda_append")

    def add(self, number: int, stream: Stream) -> None:
        fakecuda.launch(self.append, c_uint64(self.array.ptr), c_uint64(number), stream=stream)

    def numbers(self) -> list[int]:
        n, *rest = self.array.get().tolist()
        return rest[:n]


def status(stream: Stream) -> int:
    out = c_int()
    cu("cuStreamIsCapturing", c_void_p(stream.ptr), byref(out))
    return out.value
