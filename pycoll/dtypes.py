"""Element types and reduction operators: the one table of each."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pycoll.errors import UsageError


class DType(NamedTuple):
    """An element type that the reduce kernels serve."""

    name: str  #: the name numpy and torch use
    code: int  #: the number native code knows it by
    itemsize: int  #: bytes per element
    format: str  #: buffer-protocol format character, "" where the protocol has none


FLOAT64 = DType("float64", 0, 8, "d")
FLOAT32 = DType("float32", 1, 4, "f")
FLOAT16 = DType("float16", 2, 2, "e")
BFLOAT16 = DType("bfloat16", 3, 2, "")
INT8 = DType("int8", 4, 1, "b")
UINT8 = DType("uint8", 5, 1, "B")
INT32 = DType("int32", 6, 4, "i")
UINT32 = DType("uint32", 7, 4, "I")
INT64 = DType("int64", 8, 8, "q")
UINT64 = DType("uint64", 9, 8, "Q")

DTYPES: tuple[DType, ...] = (
    FLOAT64,
    FLOAT32,
    FLOAT16,
    BFLOAT16,
    INT8,
    UINT8,
    INT32,
    UINT32,
    INT64,
    UINT64,
)
BY_NAME: dict[str, DType] = {d.name: d for d in DTYPES}


class ReduceOp(enum.IntEnum):
    """How contributions combine. AVG is SUM, then one division by the number of ranks."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4


OPS: dict[str, ReduceOp] = {op.name.lower(): op for op in ReduceOp}


def reduce_op(name: str) -> ReduceOp:
    """Return the operator called ``name``; UsageError names the five that exist."""
    try:
        return OPS[name]
    except (KeyError, TypeError):
        raise UsageError(f"op is {name!r}, want one of {', '.join(OPS)}") from None
