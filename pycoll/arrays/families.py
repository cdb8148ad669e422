"""The one door for arrays: any object as an ArrayView, by the family that it is of.

For arrays of the host this is the slow path, taken at the first call of a kind: it is here that an
array which cannot be served is refused with the reason. Later calls find their plan in `_fastcall`,
by `torch.pointers` or by `spot`, and come past here no more.
"""

from __future__ import annotations

import math
from typing import Any

from pycoll.arrays.cupy import CUPY
from pycoll.arrays.host import BUFFER, DLPACK, NUMPY
from pycoll.arrays.interface import INTERFACE
from pycoll.arrays.torch import TORCH
from pycoll.arrays.view import ArrayView, Family, Spot
from pycoll.dtypes import DType
from pycoll.errors import UnavailableError, UsageError

#: An object is of the first that takes it: of its library rather than of a protocol, and what the
#: host can read too, such as managed memory, is the host's.
FAMILIES: tuple[Family, ...] = (NUMPY, TORCH, CUPY, BUFFER, INTERFACE, DLPACK)
#: Those that know arrays on GPUs at a glance.
_ON_GPUS: tuple[Family, ...] = (INTERFACE, TORCH, CUPY)


def look(x: Any, who: str) -> ArrayView:
    """Look at an array.

    Args:
        x: The array.
        who: What it is to the user, such as ``allreduce: x``; begins every message.

    Raises:
        UsageError: It is not an array, not contiguous, on a device that is not a GPU of CUDA, or
            its elements are not of a fixed number of bytes.
    """
    family, whole = family_of(x, who)
    dtype, shape = family.dtype(whole, who), family.shape(whole)
    if not family.contiguous(whole):
        raise UsageError(
            f"{who} is not contiguous (shape {shape}, strides {family.strides(whole)}); "
            f"pass {family.copy.format(who.rpartition(' ')[2])} with out="
        )
    return ArrayView(
        x,
        family.address(whole),
        math.prod(shape),
        dtype,
        shape,
        family.writable(whole),
        whole,
        family.device(whole),
        family,
    )


def family_of(x: Any, who: str) -> tuple[Family, Any]:
    """Return the family of an object and its whole; UsageError if it is no array."""
    for family in FAMILIES:
        whole = family.take(x, who)
        if whole is not None:
            return family, whole
    cure = "for a number pass numpy.array([x])"
    if isinstance(x, list | tuple):
        cure = "lists of arrays are for allreduce and broadcast"
    raise UsageError(
        f"{who} is a {type(x).__name__}, want an array (numpy, torch, the buffer protocol or "
        f"DLPack); {cure}"
    )


def spot(x: Any) -> Spot | None:
    """Say where an object lies on a GPU, if that is easily said; what is odd is left to `look`."""
    for family in _ON_GPUS:
        found = family.spot(x)
        if found is not None:
            return found
    return None


def empty(like: ArrayView, shape: tuple[int, ...], dtype: DType | None = None) -> ArrayView:
    """Return a new array of the kind of another, and by default of its dtype.

    Args:
        like: The other; not one of INTERFACE, which makes none.
        shape: Its lengths.
        dtype: Of its elements.

    Raises:
        UnavailableError: This rank has no memory for it.
    """
    try:
        made = like.family.empty(like.pin, shape, dtype)
    except (MemoryError, RuntimeError, ValueError) as error:  # the libraries each have their own
        raise UnavailableError(
            f"no memory for a new array of shape {shape} and dtype {(dtype or like.dtype).name}: "
            f"{error}; pass a smaller one, or out="
        ) from None
    return look(made, "the new array")


def flat(x: ArrayView) -> ArrayView:
    """Return the array with one axis, as a view."""
    return look(x.family.flat(x.pin), "x")


def rows(x: ArrayView, first: int, end: int) -> ArrayView:
    """Return the part of an array from row ``first`` to ``end`` of its first axis, as a view."""
    return look(x.family.rows(x.pin, first, end), "the part of x")
