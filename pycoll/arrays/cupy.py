"""Arrays of cupy; the only place that makes such, or asks for cupy's streams."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from pycoll.arrays.dtype import dtype_of
from pycoll.arrays.view import Device, Family, Spot
from pycoll.dtypes import DType


def _empty(x: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
    with x.device:
        return _cupy().empty(shape, dtype.name if dtype else x.dtype)


def _spot(x: Any) -> Spot | None:
    if not (isinstance(x, _ndarray()) and x.flags.c_contiguous):
        return None
    number = x.device.id
    return Spot((CUPY, x.dtype, x.shape, number), x.data.ptr, x.nbytes, CUPY, number)


#: Arrays of cupy, whose memory pool serves each stream in its order. It cannot be told that another
#: stream uses an array: whoever does so has to hold it.
CUPY = Family(
    take=lambda x, who: x if isinstance(x, _ndarray()) else None,
    dtype=lambda x, who: dtype_of(x.dtype, who),
    contiguous=lambda x: x.flags.c_contiguous,
    address=lambda x: int(x.data.ptr),
    copy="cupy.ascontiguousarray({})",
    empty=_empty,
    device=lambda x: Device("cuda", int(x.device.id)),
    spot=_spot,
    stream=lambda number, given: int(_cupy().cuda.get_current_stream(number).ptr),
)


def usable() -> bool:
    """Tell whether cupy is installed and finds a GPU; loads it."""
    if "cupy" not in sys.modules and importlib.util.find_spec("cupy") is None:
        return False
    try:
        return bool(importlib.import_module("cupy").cuda.is_available())
    except ImportError:  # installed for another CUDA, or half
        return False


def wrap(
    address: int, nbytes: int, owner: Any, number: int, shape: tuple[int, ...], dtype: str
) -> Any:
    """Return a cupy array over memory that ``owner`` keeps."""
    cupy = _cupy()
    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, device_id=number)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def device() -> int | None:
    """Return cupy's current device, if cupy has been loaded and finds one."""
    cuda: Any = getattr(sys.modules.get("cupy"), "cuda", None)
    if not hasattr(cuda, "Device") or not cuda.is_available():  # or half imported
        return None
    return int(cuda.Device().id)


def _cupy() -> Any:
    return sys.modules["cupy"]


def _ndarray() -> Any:
    return getattr(sys.modules.get("cupy"), "ndarray", ())
