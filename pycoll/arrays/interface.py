"""Arrays in a GPU's memory as ArrayViews: of torch, of cupy, and of whatever says where it lies."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

from pycoll.arrays import dlpack
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.cupy import Cupy
from pycoll.arrays.families import ArrayView, Device, dtype_named, dtype_of, of_tensor
from pycoll.arrays.torch import Torch
from pycoll.dtypes import DType
from pycoll.errors import UsageError

KIND = "cuda"


class Family(Protocol):
    """A library whose arrays these are: it knows its streams and its memory."""

    name: str

    def stream(self, number: int, given: int | None) -> int:
        """Return the stream that work on an array is to be ordered by.

        Args:
            number: Of the device.
            given: The stream that the array's interface names.
        """

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
        """Return a new array beside another, by default of its dtype; None: it makes none."""

    def record(self, x: Any, number: int, stream: int) -> bool:
        """Tell the library's allocator that a stream uses an array; False: it cannot be told."""


#: CUDA's handle of the legacy default stream, which every blocking stream waits for.
LEGACY = 1


class Interface:
    """What has `__cuda_array_interface__` or DLPack and is of no library known here."""

    name = "interface"

    def stream(self, number: int, given: int | None) -> int:
        """Return the stream that the interface names; the default stream if it names none."""
        return LEGACY if given is None else given

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
        """Nothing is known that makes arrays of its kind."""
        return None

    def record(self, x: Any, number: int, stream: int) -> bool:
        """There is no allocator that could be told."""
        return False


TORCH, CUPY, INTERFACE = Torch(), Cupy(), Interface()


@dataclass(frozen=True, slots=True)
class CudaView(ArrayView):
    """A contiguous array in a GPU's memory."""

    family: Family = INTERFACE
    given: int | None = None  #: the stream that its interface names

    def stream(self) -> int:
        """Return the stream that work on it is to be ordered by."""
        return self.family.stream(self.device.number, self.given)

    def record(self, stream: int) -> bool:
        """Tell whoever frees its memory that a stream uses it; False: it is to be held."""
        return self.family.record(self.owner, self.device.number, stream)


def view(x: Any, who: str) -> CudaView:
    """Look at an array.

    Args:
        x: A tensor of torch on a GPU, or an object that has `__cuda_array_interface__` or DLPack.
        who: What it is to the user; begins every message.

    Raises:
        UsageError: It is not contiguous, of a dtype not served, or not in the memory of a GPU.
    """
    # Either may be half imported, by another thread.
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if isinstance(x, tensor):
        return _of_torch(x, who)
    ndarray: Any = getattr(sys.modules.get("cupy"), "ndarray", ())
    if isinstance(x, ndarray):
        return _of_cupy(x, who)
    interface = getattr(x, "__cuda_array_interface__", None)
    return _of_dlpack(x, who) if interface is None else _of_interface(x, interface, who)


def empty(like: ArrayView, shape: tuple[int, ...], dtype: DType | None = None) -> CudaView | None:
    """Return a new array like another, and by default of its dtype; None: none is made."""
    assert isinstance(like, CudaView)
    made = like.family.empty(like.owner, shape, dtype)
    return None if made is None else view(made, "the new array")


def _of_torch(x: Any, who: str) -> CudaView:
    dtype = of_tensor(x, who)
    device = Device(KIND, x.device.index)
    shape = tuple(x.shape)
    return CudaView(x, x.data_ptr(), x.numel(), dtype, shape, True, x, device, TORCH)


def _of_cupy(x: Any, who: str) -> CudaView:
    dtype = dtype_of(x.dtype, who)
    if not x.flags.c_contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {x.shape}, strides {x.strides}); "
            f"pass cupy.ascontiguousarray({who.rpartition(' ')[2]}) with out="
        )
    device = Device(KIND, int(x.device.id))
    return CudaView(x, int(x.data.ptr), x.size, dtype, x.shape, True, x, device, CUPY)


def _of_interface(x: Any, interface: dict[str, Any], who: str) -> CudaView:
    import numpy

    dtype = numpy.dtype(interface["typestr"])
    kind, shape = dtype_of(dtype, who), tuple(interface["shape"])
    if interface.get("mask") is not None:
        raise UsageError(f"{who} has a mask, which is not served; pass an array without one")
    strides = interface.get("strides")
    if strides is not None and not dlpack.is_contiguous(shape, list(strides), dtype.itemsize):
        raise UsageError(
            f"{who} is not contiguous (shape {shape}, strides {tuple(strides)}); "
            "pass a contiguous copy with out="
        )
    address, read_only = interface["data"]
    whole = x
    if not isinstance(x, CudaArray):
        number = _number(int(address), x, who) if 0 not in shape else _named(x)
        stream = interface.get("stream")
        whole = CudaArray(int(address), shape, kind, number, x, stream, writable=not read_only)
    return _seen(x, whole, int(address), kind, not read_only, interface.get("stream"))


def _of_dlpack(x: Any, who: str) -> CudaView:
    try:
        # It names no stream, so the giver lets the one that the call will run on wait for its own.
        taken = dlpack.take(x.__dlpack__(stream=LEGACY), who)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{who} is a {type(x).__name__} whose memory cannot be shared: {error}"
        ) from error
    kind = dtype_named(taken.dtype, who)
    if not taken.contiguous:
        raise UsageError(
            f"{who} is not contiguous (shape {taken.shape}); pass a contiguous copy with out="
        )
    whole = CudaArray(taken.address, taken.shape, kind, taken.number, (x, taken.owner))
    return _seen(x, whole, taken.address, kind, True, None)


def _seen(
    x: Any, whole: CudaArray, address: int, dtype: Any, writable: bool, stream: int | None
) -> CudaView:
    device = Device(KIND, whole.number)
    return CudaView(
        x, address, whole.size, dtype, whole.shape, writable, whole, device, INTERFACE, stream
    )


def _named(x: Any) -> int:
    """Return the device that an object without memory says it is on, or the first."""
    try:
        return int(x.__dlpack_device__()[1])
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return 0


def _number(address: int, x: Any, who: str) -> int:
    """Return the device that memory belongs to; the driver knows."""
    from pycoll.runtime import bindings_cuda

    found = bindings_cuda.pointer(address)
    if found.device < 0:
        raise UsageError(
            f"{who} is a {type(x).__name__} at {address:#x}, where CUDA's driver knows of no "
            "memory of a GPU; pass an array that lies there"
        )
    return int(found.device)
