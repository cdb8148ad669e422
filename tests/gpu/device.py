"""Arrays in the memory of a GPU without cupy or torch: pycoll's own bindings and numpy.

A pool is one allocation, taken at first and freed by `close_all`, when no rank has anything to do:
to free GPU memory is to wait for all kernels, also for one that waits for what this thread would
launch next. So nothing here is left to the garbage collector.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pycoll.arrays.cuda_array import CudaArray
from pycoll.dtypes import BY_NAME, DType
from pycoll.runtime.native import cuda

#: Bytes that pass through pinned memory at once.
_STAGE = 8 << 20
_ALIGNMENT = 512  #: of arrays in a pool, as of allocations


class Array(CudaArray):
    """An array of a pool. On the host bfloat16 is its bits, in uint16."""

    def __init__(self, pool: Pool, address: int, shape: tuple[int, ...], kind: DType) -> None:
        super().__init__(address, shape, kind, pool.device, pool)
        self._pool = pool

    @property
    def host_dtype(self) -> Any:
        """What numpy holds its elements in."""
        return np.dtype(np.uint16 if self.kind.name == "bfloat16" else self.kind.name)

    def put(self, values: Any) -> Array:
        """Copy values in, and wait for that."""
        self._pool.put(self.address, np.ascontiguousarray(values, self.host_dtype).reshape(-1))
        return self

    def get(self) -> Any:
        """Copy the elements out into a numpy array."""
        out = np.empty(self.size, self.host_dtype)
        self._pool.get(self.address, out)
        return out.reshape(self.shape)

    def fill(self, byte: int) -> Array:
        """Set every byte, and wait for that."""
        if self.nbytes:
            cuda.fill(self._pool.device, self.address, byte, self.nbytes, self._pool.stream)
            cuda.stream_wait(self._pool.device, self._pool.stream)
        return self


class Pool:
    """One thread's memory on a GPU, and the stream and the pinned memory that fill it."""

    def __init__(self, device: int = 0, nbytes: int = 64 << 20) -> None:
        self.device, self.nbytes = device, nbytes
        self.stream = cuda.stream(device)
        self._base = cuda.alloc(device, nbytes)
        self._next = self._base
        self._host, _ = cuda.host_alloc(device, _STAGE)
        self._bytes = np.frombuffer((ctypes.c_char * _STAGE).from_address(self._host), np.uint8)
        _pools.append(self)

    @property
    def open(self) -> bool:
        """Whether its memory is there."""
        return self in _pools

    def close(self) -> None:
        """Free it; its arrays are gone, too."""
        if self in _pools:
            _pools.remove(self)
        cuda.stream_wait(self.device, self.stream)
        cuda.stream_free(self.device, self.stream)
        cuda.free(self.device, self._base)
        cuda.host_free(self.device, self._host)

    def reset(self) -> None:
        """Give out the same memory again."""
        self._next = self._base

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", skew: int = 0) -> Array:
        """Return an array, ``skew`` bytes behind an aligned address.

        Raises:
            MemoryError: The pool is too small.
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = BY_NAME[str(np.dtype(dtype) if dtype != "bfloat16" else dtype)]
        start = -(-self._next // _ALIGNMENT) * _ALIGNMENT + skew
        end = start + math.prod(sizes) * kind.itemsize
        if end > self._base + self.nbytes:
            raise MemoryError(f"{end - self._base} B are wanted of a pool of {self.nbytes} B")
        self._next = end
        return Array(self, start, sizes, kind)

    def array(self, values: Any, dtype: Any = None, skew: int = 0) -> Array:
        """Return an array that holds values."""
        values = np.asarray(values)
        return self.empty(values.shape, dtype or values.dtype, skew).put(values)

    def put(self, address: int, values: Any) -> None:
        """Copy a contiguous numpy array to an address."""
        source = values.view(np.uint8)
        for start in range(0, len(source), _STAGE):
            part = source[start : start + _STAGE]
            self._bytes[: len(part)] = part
            cuda.copy(self.device, address + start, self._host, len(part), self.stream)
            cuda.stream_wait(self.device, self.stream)

    def get(self, address: int, out: Any) -> None:
        """Copy from an address into a contiguous numpy array."""
        target = out.view(np.uint8)
        for start in range(0, len(target), _STAGE):
            part = target[start : start + _STAGE]
            cuda.copy(self.device, self._host, address + start, len(part), self.stream)
            cuda.stream_wait(self.device, self.stream)
            part[:] = self._bytes[: len(part)]


_pools: list[Pool] = []


def close_all() -> None:
    """Free every pool of this process; no rank of it may be in a call."""
    while _pools:
        _pools.pop().close()
