"""What cupy knows of its arrays; the only place that makes such, or asks for its streams."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from pycoll.dtypes import DType


class Cupy:
    """Arrays of cupy, whose memory pool serves each stream in its order."""

    name = "cupy"

    def stream(self, number: int, given: int | None) -> int:
        """Return cupy's current stream on a device."""
        return int(_cupy().cuda.get_current_stream(number).ptr)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
        """Return a new array beside another."""
        with like.device:
            return _cupy().empty(shape, dtype.name if dtype else like.dtype)

    def record(self, x: Any, number: int, stream: int) -> bool:
        """Say that the pool cannot be told: whoever uses an array elsewhere has to hold it."""
        return False


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
