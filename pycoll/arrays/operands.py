"""What a call wants of its arrays: one memory, one dtype, and that results spoil nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycoll.arrays.families import look
from pycoll.arrays.view import HOST, ArrayView, Device
from pycoll.dtypes import DType
from pycoll.errors import UsageError

#: What to pass instead of arrays that overlap, where the same array would do.
IN_PLACE = "the same array (in place)"
_APART = "arrays that share no memory"


def together(views: Iterable[ArrayView], who: str) -> Device:
    """Return the device that arrays lie on; HOST where there are none.

    Raises:
        UsageError: They lie on several.
    """
    found: Device | None = None
    for each in views:
        if found is not None and each.device != found:
            raise UsageError(
                f"{who}: one array is on {found} and another on {each.device}; pass arrays that "
                "lie together, such as x.cpu() or out.cuda()"
            )
        found = each.device
    return found or HOST


def result(x: ArrayView, out: Any, who: str) -> ArrayView:
    """Look at ``out`` (None: in place) and check that it can take a result like ``x``.

    Raises:
        UsageError: It is read-only, differs from ``x`` in dtype or shape, or overlaps it partly.
    """
    if out is None or out is x.owner:
        if not x.writable:
            raise UsageError(f"{who}: x is read-only; pass an array to write the result to as out=")
        return x
    y = target(out, x.dtype, f"{who}: out", x.shape)
    together((x, y), who)
    require_apart(x, y, who, IN_PLACE, in_place=x.address == y.address)
    return y


def target(
    out: Any, dtype: DType | None, who: str, shape: tuple[int, ...] | None = None
) -> ArrayView:
    """Look at an array that a result goes to.

    Args:
        out: The array.
        dtype: That it must have, as the input has; None where there is no input.
        who: What it is to the user, such as ``gather: out``.
        shape: That it must have, as the input has; None where another will do.

    Raises:
        UsageError: It is none, has another dtype or shape, or is read-only.
    """
    y = look(out, who)
    if dtype is not None and y.dtype != dtype:
        raise UsageError(f"{who} has dtype {y.dtype.name}, want {dtype.name} as x has")
    if shape is not None and y.shape != shape:
        raise UsageError(f"{who} has shape {y.shape}, want {shape} as x has")
    require_writable(y, who)
    return y


def require_writable(y: ArrayView, who: str) -> None:
    """Check that an array can be written; UsageError says what to pass instead."""
    if not y.writable:
        name = who.rpartition(": ")[2]
        copy = f", such as a copy, numpy.array({name})" if y.device == HOST else ""
        raise UsageError(f"{who} is read-only; pass an array that can be written{copy}")


def require_apart(
    x: ArrayView, out: ArrayView, who: str, cure: str = "", in_place: bool = False
) -> None:
    """Check that an input and its result share no memory, other than in place.

    Args:
        x: The input.
        out: Where the result goes.
        who: The call.
        cure: What may be passed that shares memory; by default nothing.
        in_place: Whether the two lie so that the call may run in place.

    Raises:
        UsageError: They overlap; the message says by how much and what to pass instead.
    """
    if x.overlaps(out) and not in_place:
        wanted = f"{cure} or one that shares no memory with x" if cure else _APART
        raise UsageError(
            f"{who}: out begins {out.address - x.address} bytes from x and overlaps it; "
            f"pass {wanted}"
        )
