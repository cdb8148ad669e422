"""The reduce kernels against numpy, bit for bit: every dtype and op at every level of SIMD.

native/reduce/reduce.c is compiled here too, on its own, since only then can a test choose the
level; the shipped engine, with the flags it is built with, is the last of the levels.
"""

from __future__ import annotations

import ctypes
import itertools

import compiled
import numpy as np
import pytest
from fold_checks import AVG, LONGEST, SUM, Fold, check, operands, reference

from pycoll.dtypes import DTYPES, DType, ReduceOp

LEVELS = {"narrow": 0, "middle": 1, "wide": 2, "engine": None}
COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 191, 300)
FLAGS = ("-std=gnu11", "-fPIC", "-ffp-contract=off", "-O1",
         "-Wall", "-Wextra", "-Wconversion", "-Werror", f"-I{compiled.NATIVE}")  # fmt: skip


@pytest.fixture(scope="module")
def levels() -> ctypes.CDLL:
    """The kernels alone, whose level can be chosen."""
    compiled.require()
    unit = compiled.Unit(compiled.NATIVE / "reduce" / "reduce.c", FLAGS)
    library = ctypes.CDLL(str(compiled.linked("reduce.so", [unit], "-shared")))
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
    library = request.getfixturevalue("levels")
    level = LEVELS[request.param]
    if library.pc__reduce_level(level) < 0:
        pytest.skip(f"this CPU stops below level {level} ({library.pc__cpu_features().decode()})")
    yield compiled_fold(library)
    library.pc__reduce_level(-1)


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


def test_unknown_codes_have_no_fold(levels):
    assert levels.pc__fold(len(DTYPES), SUM) is None
    assert levels.pc__fold(0, len(ReduceOp)) is None
    assert levels.pc__fold(len(DTYPES) - 1, len(ReduceOp) - 1) is not None


def test_says_which_instructions_it_uses(levels):
    best = levels.pc__cpu_features()
    assert levels.pc__reduce_level(3) == -1  # there is no such level, and nothing changes
    assert levels.pc__cpu_features() == best
    assert levels.pc__reduce_level(0) == 0
    assert levels.pc__cpu_features() in (b"sse2", b"plain")
    assert levels.pc__reduce_level(-1) >= 0
    assert levels.pc__cpu_features() == best
