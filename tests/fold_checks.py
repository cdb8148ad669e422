"""What the definition of a fold says, operands that are easily got wrong, and the comparison.

Used for every executor's fold: the definition is native/reduce/reduce.h's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pycoll.dtypes import DType, ReduceOp

SUM, PROD, MIN, MAX, AVG = ReduceOp

Bytes = NDArray[np.uint8]
Fold = Callable[..., None]  # (dtype, op, destinations, sources, count, divisor, stream): addresses

LONGEST = 4096  # elements: a vector of every special pair, and more
GUARD = 64  # bytes on either side of a destination that must survive
MARGIN = 0xA5

# Bits of a float: sign aside, what is rare and what is easily got wrong.
SPECIAL = {
    "float64": (0, 1, 2, 0xFFFFFFFFFFFFF, 1 << 52, 0x3FF << 52, (0x3FF << 52) + 1, 0x7FEF << 48,
                0x7FEFFFFFFFFFFFFF, 0x7FF << 52, (0x7FF << 52) + 1, 0x7FF8 << 48, (1 << 63) - 1),
    "float32": (0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x33800000, 0x7F000000,
                0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
    "float16": (0, 1, 2, 0x3FF, 0x400, 0x401, 0x3C00, 0x3C01, 0x1000, 0x1001, 0x7800, 0x7BFF,
                0x7C00, 0x7C01, 0x7E00, 0x7FFF),
    "bfloat16": (0, 1, 2, 0x7F, 0x80, 0x81, 0x3F80, 0x3F81, 0x3B80, 0x3B81, 0x7F00, 0x7F7F,
                 0x7F80, 0x7F81, 0x7FC0, 0x7FFF),
}  # fmt: skip
QUIET = {"float64": 0x7FF8 << 48, "float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0}


def widen(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 to float32."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def narrow(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 to bfloat16: to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), QUIET["bfloat16"], rounded).astype(np.uint16)


def extreme(op: ReduceOp, a: NDArray, b: NDArray) -> NDArray:
    """min or max where a NaN wins and -0 < +0."""
    pick = np.minimum if op == MIN else np.maximum
    if not np.issubdtype(a.dtype, np.floating):
        return pick(a, b)
    first = np.signbit(a) == (op == MIN)
    return np.where(a == b, np.where(first, a, b), pick(a, b))


def combine(op: ReduceOp, a: NDArray, b: NDArray) -> NDArray:
    if op in (MIN, MAX):
        return extreme(op, a, b)
    return a * b if op == PROD else a + b


def truncated(x: NDArray, divisor: int) -> NDArray:
    """Divide as C does; exact for every integer type."""
    wide = x.astype(np.uint64 if x.dtype.kind == "u" else np.int64)
    d = wide.dtype.type(divisor)
    quotient = wide // d
    return (quotient + ((wide < 0) & (wide % d != 0)).astype(wide.dtype)).astype(x.dtype)


def reference(dtype: DType, op: ReduceOp, sources: Sequence[Bytes], divisor: int) -> Bytes:
    """What the contract in native/reduce/reduce.h says the fold is."""
    if len(sources) == 1 and not divisor:
        return sources[0]
    half = dtype.name in ("float16", "bfloat16")
    if dtype.name == "bfloat16":
        values = [widen(source.view(np.uint16)) for source in sources]
        settle = lambda x: widen(narrow(x))  # noqa: E731
    else:
        values = [source.view(dtype.name) for source in sources]
        settle = lambda x: x  # noqa: E731
        if half:
            values = [value.astype(np.float32) for value in values]
            settle = lambda x: x.astype(np.float16).astype(np.float32)  # noqa: E731
    with np.errstate(all="ignore"):
        result = functools.reduce(lambda a, b: settle(combine(op, a, b)), values)
        if divisor and op in (SUM, AVG):
            if dtype.name in QUIET:
                result = settle(result / result.dtype.type(divisor))
            else:
                result = truncated(result, divisor)
        if dtype.name == "bfloat16":
            bits = narrow(result)
        else:
            bits = result.astype(dtype.name).view(f"u{dtype.itemsize}")
            if dtype.name in QUIET:
                bits[np.isnan(result)] = QUIET[dtype.name]
    return bits.view(np.uint8)


@functools.cache
def operands(dtype: DType) -> tuple[Bytes, ...]:
    """Eight arrays of LONGEST elements: every pair of special values, moderate ones, any bits."""
    random = np.random.default_rng(dtype.code)
    word = np.dtype(f"u{dtype.itemsize}")
    bits = random.integers(0, 1 << 8 * dtype.itemsize, (8, LONGEST), word, endpoint=False)
    if dtype.name in SPECIAL:
        sign = 1 << (8 * dtype.itemsize - 1)
        special = [bits | s for bits in SPECIAL[dtype.name] for s in (0, sign)]
        moderate = random.normal(size=(8, 1024)).astype("f4")
        if dtype.name == "bfloat16":
            bits[:, 1024:2048] = narrow(moderate)
        else:
            bits[:, 1024:2048] = moderate.astype(dtype.name).view(word)
    else:
        top = 1 << (8 * dtype.itemsize - 1)
        special = [x % (2 * top) for x in (0, 1, 2, 3, 7, -1, -2, -3, -7, top, top + 1, top - 1)]
    pairs = random.permutation(np.array(list(itertools.product(special, special)), word))
    bits[0, : len(pairs)], bits[1, : len(pairs)] = pairs.T
    bits[2:, : len(pairs)] = random.choice(np.array(special, word), (6, len(pairs)))
    return tuple(row.copy().view(np.uint8) for row in bits)


class Array:
    """Bytes at a chosen distance from a 64-byte boundary, between guards."""

    def __init__(self, content: Bytes, offset: int) -> None:
        self.memory = np.full(len(content) + 2 * GUARD + 128, MARGIN, np.uint8)
        start = -self.memory.ctypes.data % 64 + GUARD + offset
        self.content = self.memory[start : start + len(content)]
        self.content[:] = content
        self.address = self.memory.ctypes.data + start

    def guarded(self) -> bool:
        before = self.content.ctypes.data - self.memory.ctypes.data
        after = before + len(self.content)
        margins = np.concatenate([self.memory[:before], self.memory[after:]])
        return bool((margins == MARGIN).all())


def check(fold: Fold, dtype: DType, op: ReduceOp, nsrc: int, count: int, *, ndst: int = 1,
          offsets: Sequence[int] = (0,) * 10, divisor: int = 0, stream: int = 0,
          in_place: int | None = None, want: Bytes | None = None) -> None:  # fmt: skip
    """Fold the first `count` elements and compare everything the fold may touch, bit for bit."""
    nbytes = count * dtype.itemsize
    whole = operands(dtype)[:nsrc]
    if want is None:
        want = reference(dtype, op, whole, divisor)
    sources = [Array(x[:nbytes], offsets[s]) for s, x in enumerate(whole)]
    poison = np.full(nbytes, 0x5C, np.uint8)
    destinations = [Array(poison, offsets[8 + j]) for j in range(ndst)]
    if in_place is not None:
        destinations[0] = sources[in_place]
    fold(dtype, op, [d.address for d in destinations], [s.address for s in sources], count,
         divisor, stream)  # fmt: skip
    case = f"{dtype.name} {op.name} nsrc={nsrc} count={count} {ndst=} {offsets=} {divisor=} " \
           f"{stream=} {in_place=}"  # fmt: skip
    for destination in destinations:
        word = f"u{dtype.itemsize}"
        got, wanted = destination.content.copy().view(word), want[:nbytes].copy().view(word)
        wrong = np.flatnonzero(got != wanted)
        assert not len(wrong), (
            f"{case}: {len(wrong)} wrong, first [{wrong[0]}]: got {got[wrong[0]]:#x}, want "
            f"{wanted[wrong[0]]:#x} of {[hex(x.view(word)[wrong[0]]) for x in whole]}"
        )
    for array in (*sources, *destinations):
        assert array.guarded(), f"{case}: wrote outside its destination"
    for s, source in enumerate(sources):
        if s != in_place:
            assert (source.content == whole[s][:nbytes]).all(), f"{case}: changed source {s}"
