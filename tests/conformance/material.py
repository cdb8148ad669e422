"""Data that no executor may get away with: special values beside each other, any bits, moderate."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType
from pycoll.program.arithmetic import narrow, storage

Array = npt.NDArray[Any]

LENGTH = 4099  #: moderate elements of every type; from their end on all is repeated

#: Bits of exponent and of mantissa, of the types that have them.
FLOATS = {FLOAT64: (11, 52), FLOAT32: (8, 23), FLOAT16: (5, 10), BFLOAT16: (8, 7)}


@cache
def material(dtype: DType, rank: int) -> Array:
    """Every pair of special values at two neighbours of rank, then any bits, then moderate ones."""
    rng = np.random.default_rng((dtype.code, rank))
    kind, word = storage(dtype), np.dtype(f"u{dtype.itemsize}")
    special = np.array(specials(dtype), word)
    i = np.arange(len(special) ** 2)
    pairs = special[i % len(special) if rank % 2 else i // len(special)]
    order = np.random.default_rng(dtype.code).permutation(len(pairs))
    anything = rng.integers(0, 1 << 8 * dtype.itemsize, 512, word, endpoint=False)
    if dtype in FLOATS:
        wide = rng.standard_normal(LENGTH).astype(np.float64 if dtype is FLOAT64 else np.float32)
        moderate = narrow(wide, dtype).view(word)
    else:
        moderate = rng.integers(0, 12, LENGTH).astype(kind).view(word)
    made = np.concatenate([pairs[order][:700], anything, moderate])
    return made[np.random.default_rng(7).permutation(len(made))].view(kind)


def specials(dtype: DType) -> list[int]:
    bits = 8 * dtype.itemsize
    if dtype not in FLOATS:
        top = 1 << (bits - 1)
        return [x % (2 * top) for x in (0, 1, 2, 3, 7, -1, -2, -7, top, top + 1, top - 1)]
    exponent, mantissa = FLOATS[dtype]
    infinity = ((1 << exponent) - 1) << mantissa
    one = ((1 << (exponent - 1)) - 1) << mantissa
    quiet = infinity | 1 << (mantissa - 1)
    positive = (
        0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, infinity - 1, infinity,
        infinity + 1, quiet, quiet | 5,
    )  # fmt: skip
    return [x | sign for x in positive for sign in (0, 1 << (bits - 1))]


def contribution(dtype: DType, rank: int, count: int) -> Array:
    return np.resize(material(dtype, rank), count)


def nan_of(dtype: DType, x: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bool_], int]:
    """Say which elements are NaN, and what the one NaN is that a fold may give."""
    if dtype not in FLOATS:
        return np.zeros(len(x) // dtype.itemsize, bool), 0
    exponent, mantissa = FLOATS[dtype]
    infinity = ((1 << exponent) - 1) << mantissa
    word = np.dtype(f"u{dtype.itemsize}")
    magnitude = x.view(word) & word.type((1 << (exponent + mantissa)) - 1)
    return magnitude > infinity, infinity | 1 << (mantissa - 1)
