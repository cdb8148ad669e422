"""Every collective from the algorithm to numpy: lowered, proved, and run by the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from plain import PLAIN

from pycoll.dtypes import INT32, INT64, ReduceOp
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.program.reference import run
from pycoll.schedule import Algorithm, Collective, NotDirect, dump, parse, schedule
from pycoll.verify import verify, verify_programs

Array = npt.NDArray[Any]
SIZES = (*range(1, 10), 16)
each = pytest.mark.parametrize("a", PLAIN, ids=lambda a: a.name)


def lowered(a: Algorithm, size: int, **form: bool) -> list[tuple[Program, ...]]:
    """Return the Programs of the forms that there are, staged first."""
    found = [compile_all(a, size, **form)]
    try:
        return [*found, compile_all(a, size, direct=True, **form)]
    except NotDirect:
        return found


def expected(c: Collective, counts: Sequence[int], size: int) -> tuple[list[Array], list[Array]]:
    """Return inputs that differ everywhere and what every rank must end with."""
    starts = np.cumsum([0, *counts])
    whole = [
        np.arange(starts[-1], dtype=np.int64) * 1009 * (size + 1) + rank for rank in range(size)
    ]
    blocks = [[x[a:b] for a, b in pairwise(starts)] for x in whole]
    inputs, results = [], []
    for rank in range(size):
        given = [blocks[rank][b] for b in c.in_blocks(rank, size)]
        held = []
        for b in c.out_blocks(rank, size):
            ranks = c.after(rank, b, size)
            assert ranks
            held.append(np.sum([blocks[r][c.origin(rank, b, size)] for r in ranks], axis=0))
        inputs.append(np.concatenate([[], *given]).astype(np.int64))
        results.append(np.concatenate([[], *held]).astype(np.int64))
    return inputs, results


def count_lists(c: Collective, size: int) -> list[list[int]]:
    if c.blocks == "one":
        return [[n] for n in (0, 1, 9, 50)]
    if c.equal_blocks:
        return [[n] * size for n in (0, 1, 9, 20)]
    draw = random.Random(size)
    return [[n] * size for n in (0, 1, 20)] + [
        [draw.choice((0, 1, 7, 8, 33)) for _ in range(size)] for _ in range(3)
    ]


@pytest.mark.parametrize("size", SIZES)
@each
def test_programs_are_proved_and_give_what_numpy_gives(a: Algorithm, size: int) -> None:
    c = a.collective
    for programs in lowered(a, size):
        assert verify_programs(programs, c)
        for counts in count_lists(c, size):
            for in_place in (False, True)[: 1 + c.in_place]:
                inputs, results = expected(c, counts, size)
                out = run(
                    programs,
                    inputs,
                    INT64,
                    tile=64,
                    in_place=in_place,
                    collective=c,
                    counts=counts,
                )
                for got, want in zip(out, results, strict=True):
                    np.testing.assert_array_equal(got, want)


@each
def test_averages_of_what_reduces(a: Algorithm) -> None:
    for size in (1, 2, 5, 8) if a.collective.reduces else ():
        for programs in lowered(a, size, average=True):
            assert verify_programs(programs, a.collective, average=True)
            counts = [12] * a.collective.nblocks(size)
            inputs, results = expected(a.collective, counts, size)
            form = {"tile": 64, "collective": a.collective}
            out = run(programs, inputs, INT64, ReduceOp.AVG, **form)  # type: ignore[arg-type]
            for got, want in zip(out, results, strict=True):
                np.testing.assert_array_equal(got, want // size)


@each
def test_the_text_form_round_trips(a: Algorithm) -> None:
    for size in (1, 2, 3, 8):
        s = schedule(a, size)
        again = parse(dump(s))
        assert again == s
        assert again.digest == s.digest


def test_which_have_a_direct_form() -> None:
    found = {a.name for a in PLAIN if len(lowered(a, 4)) == 2}
    assert found == {
        "broadcast_linear", "reduce_linear", "allgather_linear", "reduce_scatter_linear",
        "alltoall_linear", "gather_linear", "scatter_linear",
    }  # fmt: skip


def test_what_is_passed_on_at_once_needs_no_scratch() -> None:
    by_name = {a.name: a for a in PLAIN}
    for name in ("reduce_scatter_ring", "broadcast_binomial", "scatter_linear", "reduce_linear"):
        assert {p.nscratch for p in compile_all(by_name[name], 8)} == {0}
    # Rank 4 holds the blocks of ranks 4 to 7 and keeps the first; rank 6 has two of them.
    held = [p.nscratch for p in compile_all(by_name["scatter_binomial"], 8)]
    assert held == [0, 0, 2, 0, 4, 0, 2, 0]


def test_the_inputs_tell_the_counts() -> None:
    gather = next(a for a in PLAIN if a.name == "gather_binomial")
    inputs = [np.full(rank, rank, np.int32) for rank in range(5)]
    root, *rest = run(compile_all(gather, 5), inputs, INT32, collective=gather.collective)
    np.testing.assert_array_equal(root, np.concatenate(inputs))
    assert [len(x) for x in rest] == [0] * 4


def test_an_algorithm_is_proved_for_its_own_collective() -> None:
    for a in PLAIN:
        assert verify(a, 5, slots=1 if a.name == "broadcast_binomial" else 2)
