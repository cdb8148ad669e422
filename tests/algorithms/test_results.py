"""Every built-in against numpy, through the reference interpreter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pycoll.algorithms import BUILTIN, get
from pycoll.dtypes import FLOAT32, INT32, INT64, ReduceOp
from pycoll.program.lower import compile_all
from pycoll.program.reference import run
from pycoll.schedule import Algorithm, NotDirect

TILE = 64
every_algorithm = pytest.mark.parametrize("a", BUILTIN, ids=lambda a: a.name)
#: of int32: nothing, one element, a tail, several chunks and tiles of every length
COUNTS = [0, 1, 3, 16, 17, 257, 700]


def inputs(size: int, count: int) -> list[np.ndarray[Any, Any]]:
    """Return data whose every element differs over ranks and places."""
    return [(np.arange(count) * 131 + 1) * (rank + 1) % 99991 for rank in range(size)]


def check(programs: Sequence[Any], size: int, count: int, in_place: bool) -> None:
    data = [x.astype(np.int32) for x in inputs(size, count)]
    want = np.sum(data, axis=0, dtype=np.int32)
    for out in run(programs, data, INT32, tile=TILE, in_place=in_place):
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("size", [*range(1, 18), 32])
@every_algorithm
def test_staged_sums(a: Algorithm, size: int) -> None:
    programs = compile_all(a, size)
    for count in COUNTS if size < 5 else (1, 100):
        for in_place in (False, True):
            check(programs, size, count, in_place)


@pytest.mark.parametrize("size", [*range(1, 18), 32])
def test_direct_sums(size: int) -> None:
    programs = compile_all(get("two_shot"), size, direct=True)
    for count in COUNTS if size < 5 else (1, 100):
        for in_place in (False, True):
            check(programs, size, count, in_place)


def test_which_have_a_direct_form() -> None:
    found = set()
    for a in BUILTIN:
        for size in (1, 2, 3, 4, 7):
            try:
                compile_all(a, size, direct=True)
                found.add((a.name, size))
            except NotDirect:
                pass
    two_shot = {("two_shot", size) for size in (1, 2, 3, 4, 7)}
    alone = {(a.name, 1) for a in BUILTIN}
    assert found == two_shot | alone | {("ring", 2), ("halving_doubling", 2)}


@pytest.mark.parametrize("direct", [False, True])
@every_algorithm
def test_averages(a: Algorithm, direct: bool) -> None:
    for size in (1, 2, 3, 6, 9):
        if direct and a.name != "two_shot":
            continue
        data = [x - 40000 for x in inputs(size, 100)]
        total = np.sum(data, axis=0)
        want = np.sign(total) * (np.abs(total) // size)  # truncates as C does
        programs = compile_all(a, size, direct=direct, average=True)
        for out in run(programs, data, INT64, ReduceOp.AVG, tile=TILE):
            np.testing.assert_array_equal(out, want)


@every_algorithm
def test_all_ranks_hold_the_same_bits(a: Algorithm) -> None:
    rng = np.random.default_rng(3)
    for size in (3, 6, 11):
        data = [rng.standard_normal(300).astype(np.float32) for _ in range(size)]
        for op in (ReduceOp.SUM, ReduceOp.PROD):
            first, *others = run(compile_all(a, size), data, FLOAT32, op, tile=TILE)
            for other in others:
                np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@every_algorithm
def test_bits_do_not_depend_on_the_tile_or_the_slots(a: Algorithm) -> None:
    rng = np.random.default_rng(4)
    data = [rng.standard_normal(700).astype(np.float32) for _ in range(5)]
    programs = compile_all(a, 5)
    first = run(programs, data, FLOAT32, tile=64)[0]
    for tile, slots in ((128, 3), (4096, 2)):
        again = run(programs, data, FLOAT32, tile=tile, slots=slots)[0]
        np.testing.assert_array_equal(again, first)
