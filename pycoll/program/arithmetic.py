"""Element arithmetic with the exact rounding that every executor must reproduce.

numpy knows no bfloat16: its bits are held as uint16 and computed on as float32, rounded to
nearest even after every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.dtypes import BFLOAT16, FLOAT16, DType, ReduceOp

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array], Any]


def storage(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type that holds elements of ``dtype``; bfloat16 lies in uint16."""
    return np.dtype(np.uint16 if dtype is BFLOAT16 else dtype.name)


def widen(x: Array, dtype: DType) -> Array:
    """Return the values to compute on: f16 and bf16 as float32, all else unchanged."""
    if dtype is BFLOAT16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if dtype is FLOAT16 else x


def narrow(x: Array, dtype: DType) -> Array:
    """Round computed values to ``dtype``, to nearest even."""
    if dtype is not BFLOAT16:
        return x.astype(storage(dtype))
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # rounding a NaN's bits up could make an infinity of it
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def combine(a: Array, b: Array, dtype: DType, op: ReduceOp) -> Array:
    """Return ``a op b``; AVG combines as SUM."""
    with np.errstate(all="ignore"):
        return narrow(_COMBINE[op](widen(a, dtype), widen(b, dtype)), dtype)


def divide(x: Array, size: int, dtype: DType) -> Array:
    """Return ``x / size``: true division of floats, truncating towards zero of integers."""
    if np.issubdtype(x.dtype, np.integer) and dtype is not BFLOAT16:
        # Divide in 64 bits: the divisor need not fit an int8. numpy floors, C truncates.
        wide = x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)
        divisor = wide.dtype.type(size)
        floor = wide // divisor
        truncated: Array = floor + ((wide < 0) & (floor * divisor != wide))
        return truncated.astype(x.dtype)
    wide = widen(x, dtype)
    with np.errstate(all="ignore"):
        return narrow(wide / wide.dtype.type(size), dtype)


def _extreme(pick: Combine, low: bool) -> Combine:
    def extreme(a: Array, b: Array) -> Array:
        result: Array = pick(a, b)  # propagates NaN
        if a.dtype.kind != "f":
            return result
        # numpy takes either zero of -0 and +0; here -0 is the smaller.
        zero = np.where(np.signbit(a) == low, a, b)
        ordered: Array = np.where(a == b, zero, result)
        return ordered

    return extreme


_COMBINE: dict[ReduceOp, Combine] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: _extreme(np.minimum, True),
    ReduceOp.MAX: _extreme(np.maximum, False),
    ReduceOp.AVG: np.add,
}
