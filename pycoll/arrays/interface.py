"""Memory of GPUs that says itself where it is: `__cuda_array_interface__`, DLPack, streams."""

from __future__ import annotations

import operator
from typing import Any

from pycoll.arrays import dlpack, driver
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.dtype import dtype_named, dtype_of
from pycoll.arrays.view import Device, Family, Spot
from pycoll.errors import UsageError, quoted

#: CUDA's handle of the legacy default stream, which every blocking stream waits for.
LEGACY = 1


def _take(x: Any, who: str) -> CudaArray | None:
    if isinstance(x, CudaArray):
        return x
    shown = getattr(x, "__cuda_array_interface__", None)
    if shown is not None:
        return _shown(x, shown, who)
    device = _device(x)
    return _taken(x, who) if device is not None and device[0] == dlpack.CUDA else None


def _shown(x: Any, interface: dict[str, Any], who: str) -> CudaArray:
    import numpy

    kind, shape = dtype_of(numpy.dtype(interface["typestr"]), who), tuple(interface["shape"])
    if interface.get("mask") is not None:
        raise UsageError(f"{who} has a mask, which is not served; pass an array without one")
    address, read_only = interface["data"]
    if 0 in shape:
        number = (_device(x) or (dlpack.CUDA, 0))[1]  # the driver knows of no memory there
    elif (number := driver.gpu_of(int(address))) < 0:
        raise UsageError(
            f"{who} is a {type(x).__name__} at {int(address):#x}, where CUDA's driver knows of no "
            "memory of a GPU; pass an array that lies there"
        )
    stream, strides = interface.get("stream"), interface.get("strides")
    found = CudaArray(int(address), shape, kind, number, x, stream, writable=not read_only)
    found.strides = None if strides is None else tuple(strides)
    return found


def _taken(x: Any, who: str) -> CudaArray:
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
    found = CudaArray(taken.address, taken.shape, kind, taken.number, (x, taken.owner))
    found.strides = taken.strides and tuple(n * kind.itemsize for n in taken.strides)
    return found


def _device(x: Any) -> tuple[int, int] | None:
    """Return the kind and the number of the device that an object says by DLPack, if it does."""
    try:
        kind, number = x.__dlpack_device__()
        return int(kind), int(number)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def _contiguous(x: CudaArray) -> bool:
    return x.strides is None or dlpack.is_contiguous(x.shape, x.strides, x.kind.itemsize)


def _spot(x: Any) -> Spot | None:
    if not isinstance(x, CudaArray):
        return None
    kind = CudaArray, x.kind, x.shape, x.number, x.stream, x.writable
    return Spot(kind, x.address, x.nbytes, INTERFACE, x.number, x.stream)


#: What has an interface of GPUs and is of no library known here; its whole is a CudaArray. Nobody
#: can be told which streams use it, and nothing is known that makes arrays of its kind.
INTERFACE = Family(
    take=_take,
    dtype=lambda x, who: x.kind,
    contiguous=_contiguous,
    address=lambda x: x.address,
    copy="a contiguous copy",
    empty=lambda x, shape, dtype: None,
    writable=lambda x: x.writable,
    device=lambda x: Device("cuda", x.number),
    spot=_spot,
    given=lambda x: x.stream,
    stream=lambda number, given: LEGACY if given is None else given,
)


def handle_of(stream: Any) -> int:
    """Return CUDA's handle of a stream, such as one of torch or cupy.

    Raises:
        UsageError: It is none.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr"):  # torch; cupy
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    try:
        number = operator.index(stream)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise UsageError(
            f"on_stream: stream is {quoted(stream)}, want a stream of torch or cupy, an object "
            "with __cuda_stream__, or CUDA's handle as an integer"
        )
    return number
