"""Memory of a GPU that all ranks can reach: what ``comm.empty(..., device="cuda")`` gives."""

from __future__ import annotations

import gc
import math
import weakref
from collections import deque
from typing import Any, Protocol

from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.cupy import usable, wrap
from pycoll.dtypes import DType
from pycoll.errors import UnavailableError
from pycoll.runtime.native import device_comm


class _Room:
    """A piece of the heap; arrays hold it."""

    def __init__(self, address: int, nbytes: int, heap: DeviceHeap) -> None:
        self.address, self.nbytes, self.heap = address, nbytes, heap


class Device(Protocol):
    """What is used here of a device communicator."""

    device: int
    native: Any

    def idle(self) -> bool:
        """Tell whether all that was launched has ended."""

    def drain(self) -> None:
        """Wait until it has, and let go of the arrays that it used."""


class DeviceHeap:
    """The reachable GPU memory of one device communicator.

    A piece is given back once no array refers to it and all that was launched has ended: a kernel
    may still be busy with what Python has let go of.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._dead: deque[int] = deque()  #: a finalizer runs anywhere: it takes no lock
        self._live: dict[int, int] = {}  #: address → bytes

    def empty(self, shape: tuple[int, ...], kind: DType) -> Any:
        """Return an array whose elements have no set value: of cupy where that is, else its own."""
        room = self._allocate(math.prod(shape) * kind.itemsize)
        number = self._device.device
        if kind.format and usable():
            return wrap(room.address, room.nbytes, room, number, shape, kind.name)
        return CudaArray(room.address, shape, kind, number, room)

    def array(self, shape: tuple[int, ...], kind: DType) -> CudaArray:
        """Return a CudaArray."""
        room = self._allocate(math.prod(shape) * kind.itemsize)
        return CudaArray(room.address, shape, kind, self._device.device, room)

    def holds(self, address: int, nbytes: int) -> bool:
        """Tell whether these bytes are of one of its arrays."""
        return any(
            start <= address and address + nbytes <= start + room
            for start, room in tuple(self._live.items())
        )

    def owns(self, array: Any) -> bool:
        """Tell whether an array is one that `array` or `empty` has made here, or a part of one."""
        room = array.memory if isinstance(array, CudaArray) else None
        return isinstance(room, _Room) and room.heap is self

    def _allocate(self, nbytes: int) -> _Room:
        address = self._find(nbytes)
        if address is None:
            self._device.drain()  # which lets go of arrays, too
            gc.collect()  # arrays in reference cycles
            address = self._find(nbytes)
        if address is None:
            raise UnavailableError(
                f"empty: no room for {nbytes} bytes of GPU memory beside {len(self._live)} arrays "
                f"of this communicator; delete some, or give it more by PYCOLL_CUDA_HEAP, in MiB"
            )
        room = _Room(address, nbytes, self)
        self._live[address] = nbytes
        weakref.finalize(room, self._discard, address).atexit = False
        return room

    def _discard(self, address: int) -> None:
        self._live.pop(address, None)
        self._dead.append(address)

    def _find(self, nbytes: int) -> int | None:
        device = self._device
        if self._dead and device.idle():
            while self._dead:
                device_comm.device_comm_free(device.native, self._dead.popleft())
        return device_comm.device_comm_alloc(device.native, max(1, nbytes))
