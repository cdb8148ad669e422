"""Element types and reduction operators: the one table of each."""

from __future__ import annotations

import enum
import hashlib
from typing import Literal, NamedTuple

from pycoll.errors import UsageError, quoted


class DType(NamedTuple):
    """An element type. The kernels reduce those of `DTYPES`; any other is moved, as bytes."""

    name: str  #: the name numpy and torch use
    code: int  #: the number native code knows it by
    itemsize: int  #: bytes per element
    format: str  #: buffer-protocol format, "" where the protocol has none

    @property
    def reduces(self) -> bool:
        """Whether elements can be added, multiplied and compared."""
        return self.code < len(DTYPES)

    @property
    def carrier(self) -> DType:
        """What the kernels see of it: itself, or bytes where it can only be moved."""
        return self if self.reduces else UINT8

    @property
    def named(self) -> bool:
        """Whether native code knows it by its code alone."""
        return self.code < len(DTYPES) + len(MOVED)


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
#: Moved only, and so common that native code knows their names and formats.
MOVED: tuple[DType, ...] = tuple(
    DType(name, len(DTYPES) + i, itemsize, form)
    for i, (name, itemsize, form) in enumerate(
        (
            ("bool", 1, "?"),
            ("int16", 2, "h"),
            ("uint16", 2, "H"),
            ("complex64", 8, "Zf"),
            ("complex128", 16, "Zd"),
            ("float8_e4m3fn", 1, ""),
            ("float8_e5m2", 1, ""),
            ("float8_e4m3fnuz", 1, ""),
            ("float8_e5m2fnuz", 1, ""),
            ("float8_e8m0fnu", 1, ""),
        )
    )
)
BY_NAME: dict[str, DType] = {d.name: d for d in DTYPES}

#: Codes of the other types: this bit, and behind it bits of a hash of the name.
_HASHED = 1 << 14

_made: dict[tuple[str, int], DType] = {(d.name, d.itemsize): d for d in (*DTYPES, *MOVED)}


def element(name: str, itemsize: int) -> DType:
    """Return the element type of this name and of so many bytes: one object for equal ones.

    Of a type that is in neither table the code is a hash: two ranks that disagree about it are
    told apart by it, but what it is called only the rank knows that has it.
    """
    found = _made.get((name, itemsize))
    if found is None:
        digest = hashlib.blake2b(f"{name} {itemsize}".encode(), digest_size=2).digest()
        code = _HASHED | int.from_bytes(digest, "little") % _HASHED
        found = _made[name, itemsize] = DType(name, code, itemsize, "")
    return found


class ReduceOp(enum.IntEnum):
    """How contributions combine. AVG is SUM, then one division by the number of ranks."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4


#: What a user calls an operator.
OpName = Literal["sum", "prod", "min", "max", "avg"]
OPS: dict[str, ReduceOp] = {op.name.lower(): op for op in ReduceOp}


def reduce_op(name: str) -> ReduceOp:
    """Return the operator called ``name``; UsageError names the five that exist."""
    found = OPS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"op is {quoted(name)}, want one of {', '.join(OPS)}")
    return found
