"""Tensors of torch, on the host and on GPUs; the only place that asks torch about them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from pycoll.arrays.dtype import named
from pycoll.arrays.view import HOST, Device, Family, Spot
from pycoll.dtypes import DTYPES, MOVED, DType, element
from pycoll.errors import UsageError


def _take(x: Any, who: str) -> Any:
    # Tensors exist only where torch has been imported, which another thread may be doing now.
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(x, tensor):
        return None
    if not x.is_cuda and x.device.type != "cpu":
        raise UsageError(f"{who} is on {x.device}, which is not served; pass x.cpu()")
    if str(x.layout) != "torch.strided":
        raise UsageError(f"{who} has layout {x.layout}, which is not served; pass x.to_dense()")
    if x.is_quantized:
        raise UsageError(f"{who} is quantized, which is not served; pass x.int_repr()")
    if x.is_conj() or x.is_neg():
        raise UsageError(
            f"{who} is the conjugate or the negative of what its memory holds; "
            "pass x.resolve_conj().resolve_neg()"
        )
    return x


def _dtype(x: Any, who: str) -> DType:
    name = str(x.dtype).removeprefix("torch.")
    return named(name) or element(name, x.dtype.itemsize)


def _empty(x: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
    return x.new_empty(shape, dtype=getattr(_torch(), dtype.name) if dtype else x.dtype)


def _spot(x: Any) -> Spot | None:
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if not (isinstance(x, tensor) and x.is_cuda and plain(x)):
        return None
    number = x.get_device()
    return Spot((TORCH, x.dtype, x.shape, number), x.data_ptr(), x.nbytes, TORCH, number)


def _record(x: Any, number: int, stream: int) -> bool:
    x.record_stream(_torch().cuda.ExternalStream(stream, device=number))
    return True


#: Tensors, whose allocator wants to hear on which streams beside torch's current one they are used.
TORCH = Family(
    take=_take,
    dtype=_dtype,
    contiguous=lambda x: x.is_contiguous(),
    address=lambda x: x.data_ptr(),
    copy="{}.contiguous()",
    empty=_empty,
    strides=lambda x: x.stride(),
    device=lambda x: Device("cuda", x.device.index) if x.is_cuda else HOST,
    spot=_spot,
    stream=lambda number, given: int(_torch().cuda.current_stream(number).cuda_stream),
    record=_record,
)


def plain(tensor: Any) -> bool:
    """Tell whether a tensor's memory is just its elements, one behind the other."""
    found: bool = (
        tensor.layout is sys.modules["torch"].strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )
    return found


def codes(dtypes: Iterable[DType]) -> dict[Any, int]:
    """Return torch.dtype → the number that native code knows it by, of those that torch has."""
    found = ((getattr(_torch(), d.name, None), d.code) for d in dtypes)
    return {dtype: code for dtype, code in found if dtype is not None}


#: Those of all that native code knows by name; filled at the first tensor.
_CODES: dict[Any, int] = {}


def pointers(x: Any, out: Any, alike: bool) -> tuple[int, int, int, int, int] | None:
    """Return the addresses, bytes and dtype's code of tensors of the host that need no second look.

    The per-call path of torch. None sends the caller to `families.look`, which finds the reason.

    Args:
        x: The input.
        out: The result; None where it goes to ``x``.
        alike: Whether the two must have one shape.
    """
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())
    if not isinstance(x, tensor):
        return None
    if not _CODES:
        _CODES.update(codes((*DTYPES, *MOVED)))
    code = _CODES.get(x.dtype)
    if code is None or not (x.is_cpu and plain(x)):
        return None
    start: int = x.data_ptr()
    nbytes: int = x.nbytes
    if out is None or out is x:
        return start, start, nbytes, nbytes, code
    if not (isinstance(out, tensor) and out.dtype is x.dtype and out.is_cpu and plain(out)):
        return None
    if alike and out.shape != x.shape:
        return None
    return start, out.data_ptr(), nbytes, out.nbytes, code


def device() -> int | None:
    """Return torch's current device, if torch has been loaded and uses a GPU."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if not hasattr(cuda, "current_device") or not cuda.is_initialized():  # or half imported
        return None
    return int(cuda.current_device())


def _torch() -> Any:
    return sys.modules["torch"]
