"""What tests of the fixed order share: data whose bits tell orders apart, and the loop."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: The built-ins that fold in the order of the ranks, among any number of them.
ORDERED = {
    "allreduce": ("one_shot", "two_shot", "flat_tree", "ordered_chain", "ordered_hierarchical"),
    "reduce": ("direct", "two_shot", "ordered_chain", "ordered_hierarchical"),
    "reduce_scatter": ("direct", "ordered_hierarchical"),
}
DTYPES = ("float32", "float64", "float16")
MOST = 6000  #: elements of a message


def messages(size: int, dtype: str) -> list[Array]:
    """Return what the ranks bring: numbers of many magnitudes, and some that cancel."""
    random = np.random.default_rng(24)
    most = 4 if dtype == "float16" else 12
    scale = 10.0 ** random.integers(-most, most, MOST)
    xs = [random.normal(size=MOST) * scale * 3.0**-rank for rank in range(size)]
    xs[-1][::2] -= xs[0][::2]
    return [x.astype(dtype) for x in xs]


def in_order(xs: list[Array]) -> Array:
    """Return the fold that the documentation promises."""
    with np.errstate(all="ignore"):
        return functools.reduce(np.add, xs)


def bits(x: Array | None) -> bytes:
    """Return an array's bytes; none of a rank that gets nothing."""
    return b"" if x is None else np.ascontiguousarray(x).tobytes()
