"""What torch knows of its tensors on a GPU; the only place that touches torch.cuda."""

from __future__ import annotations

import sys
from typing import Any

from pycoll.dtypes import DType


class Torch:
    """Tensors of torch, whose allocator wants to hear on which streams they are used."""

    name = "torch"

    def stream(self, number: int, given: int | None) -> int:
        """Return torch's current stream on a device."""
        return int(_torch().cuda.current_stream(number).cuda_stream)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
        """Return a new tensor beside another."""
        if dtype is None:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=getattr(_torch(), dtype.name))

    def record(self, x: Any, number: int, stream: int) -> bool:
        """Tell the allocator that a tensor is used on a stream that is not torch's current one."""
        x.record_stream(_torch().cuda.ExternalStream(stream, device=number))
        return True


def device() -> int | None:
    """Return torch's current device, if torch has been loaded and uses a GPU."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if not hasattr(cuda, "current_device") or not cuda.is_initialized():  # or half imported
        return None
    return int(cuda.current_device())


def _torch() -> Any:
    return sys.modules["torch"]
