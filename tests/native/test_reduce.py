"""The reduce kernels against numpy, bit for bit: every dtype and op at every level of SIMD.

native/reduce.c is compiled here too, on its own, since only then can a test choose the level; the
shipped engine, with the flags it is built with, is the last of the levels.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pycoll.dtypes import DTYPES, DType, ReduceOp

SUM, PROD, MIN, MAX, AVG = ReduceOp

Bytes = NDArray[np.uint8]
Fold = Callable[..., None]  # (dtype, op, destinations, sources, count, divisor, stream): addresses

LEVELS = {"narrow": 0, "middle": 1, "wide": 2, "engine": None}
COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 191, 300)
FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-ffp-contract=off",
         "-Wall", "-Wextra", "-Wconversion", "-Werror")  # fmt: skip
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
    """What the contract in native/reduce.h says the fold is."""
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


def compile_reduce(root: Path, folder: Path, *flags: str) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler: only the engine's own level can be tested")
    library = folder / "reduce.so"
    done = subprocess.run(
        [compiler, *FLAGS, *flags, "-o", library, root / "native" / "reduce.c"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="module")
def compiled(root: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = ctypes.CDLL(str(compile_reduce(root, tmp_path_factory.mktemp("reduce"), "-O1")))
    library.pc__fold.restype = ctypes.c_void_p
    library.pc__cpu_features.restype = ctypes.c_char_p
    return library


FOLD = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32,
    ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32,
)  # fmt: skip


def compiled_fold(library: ctypes.CDLL) -> Fold:
    def fold(dtype, op, destinations, sources, count, divisor=0, stream=0):
        to = (ctypes.c_void_p * len(destinations))(*destinations)
        from_ = (ctypes.c_void_p * len(sources))(*sources)
        function = FOLD(library.pc__fold(dtype.code, op))
        function(to, len(destinations), from_, len(sources), count, divisor, stream)

    return fold


def engine_fold() -> Fold:
    from pycoll._native import ffi, lib

    def fold(dtype, op, destinations, sources, count, divisor=0, stream=0):
        to = ffi.new("void *[]", [ffi.cast("void *", d) for d in destinations])
        from_ = ffi.new("void *[]", [ffi.cast("void *", s) for s in sources])
        ends = (to, len(destinations), ffi.cast("const void **", from_), len(sources))
        assert lib.pc_fold_test(dtype.code, op, *ends, count, divisor, stream) == 0

    return fold


@pytest.fixture(params=LEVELS)
def fold(request: pytest.FixtureRequest):
    """The fold at one level of SIMD."""
    if request.param == "engine":
        yield engine_fold()
        return
    library = request.getfixturevalue("compiled")
    level = LEVELS[request.param]
    if library.pc__reduce_level(level) < 0:
        pytest.skip(f"this CPU stops below level {level} ({library.pc__cpu_features().decode()})")
    yield compiled_fold(library)
    library.pc__reduce_level(-1)


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


@pytest.fixture(params=DTYPES, ids=lambda dtype: dtype.name)
def dtype(request: pytest.FixtureRequest) -> DType:
    return request.param


def test_folds_equal_numpy_at_every_shape(fold, dtype):
    random = np.random.default_rng(1)
    for op, nsrc in itertools.product(ReduceOp, range(1, 9)):
        divisor = int(random.integers(1, 9)) if op == AVG else 0
        want = reference(dtype, op, operands(dtype)[:nsrc], divisor)
        for ndst, count in itertools.product((1, 2), COUNTS):
            step = int(random.choice((1, dtype.itemsize, 16, 64)))  # unaligned, elements, vectors
            offsets = (random.integers(0, 64, 10) // step * step).tolist()
            stream = int(random.integers(0, 1 << ndst))
            in_place = int(random.integers(0, nsrc)) if random.random() < 0.3 else None
            check(fold, dtype, op, nsrc, count, ndst=ndst, offsets=offsets, divisor=divisor,
                  stream=stream, in_place=in_place, want=want)  # fmt: skip


def test_folds_every_pair_of_special_values(fold, dtype):
    for op, nsrc in itertools.product(ReduceOp, (2, 3, 8)):
        check(fold, dtype, op, nsrc, LONGEST)
        check(fold, dtype, op, nsrc, LONGEST, ndst=2, stream=3)


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8, 16, 24, 32, 63])
def test_streams_to_any_alignment(fold, dtype, offset):
    for ndst, other in ((1, 0), (2, 0), (2, offset), (2, 8)):
        for stream in range(1 << ndst):
            offsets = [0] * 8 + [offset, other]
            check(fold, dtype, SUM, 2, 1000, ndst=ndst, offsets=offsets, stream=stream)
            check(fold, dtype, SUM, 1, 1000, ndst=ndst, offsets=offsets, stream=stream)


def test_average_divides_by_any_number_of_ranks(fold, dtype):
    for nsrc, divisor in itertools.product((1, 2, 5), (1, 2, 3, 7, 127, 128, 255, 1000, 65535)):
        check(fold, dtype, AVG, nsrc, LONGEST, divisor=divisor)


def test_a_copy_keeps_every_bit_even_of_nan(fold, dtype):
    for count in (1, LONGEST):
        check(fold, dtype, SUM, 1, count, want=operands(dtype)[0])
        check(fold, dtype, SUM, 1, count, want=operands(dtype)[0], in_place=0)


def test_unknown_codes_have_no_fold(compiled):
    assert compiled.pc__fold(len(DTYPES), SUM) is None
    assert compiled.pc__fold(0, len(ReduceOp)) is None
    assert compiled.pc__fold(len(DTYPES) - 1, len(ReduceOp) - 1) is not None


def test_says_which_instructions_it_uses(compiled):
    best = compiled.pc__cpu_features()
    assert compiled.pc__reduce_level(3) == -1  # there is no such level, and nothing changes
    assert compiled.pc__cpu_features() == best
    assert compiled.pc__reduce_level(0) == 0
    assert compiled.pc__cpu_features() in (b"sse2", b"plain")
    assert compiled.pc__reduce_level(-1) >= 0
    assert compiled.pc__cpu_features() == best
