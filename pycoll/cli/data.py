"""Data for a check that is exact: small integers, whose reduction no order of folding can round."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycoll.dtypes import ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]

_STEP = 61  #: how far apart in the common pattern the data of two neighbouring ranks begin


class Problem:
    """One rank's input and the result that every rank must hold, at every element."""

    def __init__(self, count: int, dtype: str, op: ReduceOp, rank: int, size: int) -> None:
        self.op = op
        # Every rank cuts its data out of one pattern, so that the expected result costs one
        # pass per rank instead of one random generation per pair of ranks.
        random = np.random.default_rng((count, size))
        kind = np.dtype(dtype).kind
        pattern = random.integers(0 if kind == "u" else -8, 9, count + _STEP * size, dtype=np.int8)
        if op is ReduceOp.PROD:  # integers wrap, odd ones never to 0; a float's 1 and -1 stay exact
            pattern = pattern | np.int8(1) if kind != "f" else np.where(pattern % 2, 1, -1)
        values = pattern.astype(dtype)
        parts = [values[_STEP * r : _STEP * r + count] for r in range(size)]
        self.input: Array = parts[rank].copy()
        self.expected: Array = _fold(op, parts)

    def reset(self, x: Array, out: Array) -> None:
        """Give ``x`` its input; ``out``, if it is another array, something wrong everywhere."""
        np.copyto(x, self.input)
        if out is not x:
            bits = f"u{out.itemsize}"
            np.invert(self.expected.view(bits), out=out.view(bits))

    def rest(self, x: Array) -> None:
        """Make ``x`` hold what stays itself however often it is reduced in place."""
        if self.op is ReduceOp.SUM:
            x.fill(0)
        elif self.op is ReduceOp.PROD:
            x.fill(1)

    def wrong(self, out: Array) -> int:
        """Return how many elements of ``out`` are not what they must be."""
        return int(np.count_nonzero(out != self.expected))


def _fold(op: ReduceOp, parts: list[Array]) -> Array:
    total: Array = parts[0].copy()
    ufunc = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
    for part in parts[1:]:
        ufunc.get(op, np.add)(total, part, out=total)
    if op is ReduceOp.AVG:
        size, kind = len(parts), total.dtype
        if kind.kind == "f":
            wide = np.float32 if kind.itemsize == 2 else kind
            total = np.divide(total, np.asarray(size, wide), dtype=wide).astype(kind)
        else:  # C divides towards zero
            quotient = np.abs(total.astype(np.int64)) // size
            total = (np.sign(total.astype(np.int64)) * quotient).astype(kind)
    return total
