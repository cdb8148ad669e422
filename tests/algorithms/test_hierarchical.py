"""Algorithms made of one inside groups and one between them, on placements of every shape."""

from __future__ import annotations

from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promises import block_counts, messages, promised, provided

from pycoll.algorithms import BUILTIN, algorithm, get, hierarchical
from pycoll.dtypes import FLOAT32, INT64, ReduceOp
from pycoll.errors import UsageError
from pycoll.program.lower import compile_all
from pycoll.program.reference import run
from pycoll.schedule import (
    Algorithm,
    Kind,
    Level,
    Placement,
    ScheduleBuilder,
    allreduce,
    dump,
    schedule,
)
from pycoll.verify import verify, verify_programs


def placed(**levels: list[int]) -> Placement:
    return Placement.of(*(Level(name, tuple(of)) for name, of in levels.items()))


def filled(*counts: int) -> list[int]:
    """Return group numbers: the first count ranks in group 0, and so on."""
    return list(chain.from_iterable(repeat(i, n) for i, n in enumerate(counts)))


PLACEMENTS = {
    "2+2": placed(node=filled(2, 2)),
    "3+1+2": placed(node=filled(3, 1, 2)),
    "5+1": placed(node=filled(5, 1)),
    "1+5": placed(node=filled(1, 5)),
    "4+3": placed(node=filled(4, 3)),
    "3 x 4": placed(node=filled(4, 4, 4)),
    "2 + 2 in turn": placed(node=[0, 1, 0, 1]),
    "uneven in turn": placed(node=[0, 1, 0, 2, 0, 2, 0]),
    "2x2x2": placed(node=filled(2, 2, 2, 2), rack=filled(4, 4)),
    "sockets, nodes, racks": placed(
        socket=filled(2, 1, 1, 2, 1, 3), node=filled(3, 3, 4), rack=filled(6, 4)
    ),
    "sockets and nodes in turn": placed(
        socket=[0, 1, 0, 2, 1, 3, 2, 3], node=[0, 0, 0, 1, 0, 1, 1, 1]
    ),
}
BUILT = [a for a in BUILTIN if "hierarchical" in a.name]
MADE = [
    hierarchical(get("halving_doubling"), get("ring", "reduce_scatter"), get("ring", "allgather")),
    hierarchical(get("bruck"), get("bruck", "reduce_scatter"), get("bruck", "allgather")),
    hierarchical(get("one_shot"), get("two_shot", "reduce"), get("scatter_allgather", "broadcast")),
    hierarchical(get("two_shot", "broadcast"), get("double_binary_tree", "broadcast")),
    hierarchical(get("reduce_scatter_gather", "reduce"), get("chain", "reduce")),
    hierarchical(get("pat", "allgather"), get("ring", "allgather")),
    hierarchical(get("pat", "reduce_scatter"), get("pairwise", "reduce_scatter")),
]


def ranks(placement: Placement) -> int:
    return len(placement.levels[0].groups)


def check(a: Algorithm, placement: Placement, average: bool = False) -> None:
    c, size = a.collective, ranks(placement)
    programs = compile_all(a, size, placement=placement, average=average)
    counts = block_counts(c, size, 100 if c.blocks == "one" else 21)
    data = [x * size if average else x for x in messages(size, sum(counts))]
    inputs = [provided(c, rank, data, counts) for rank in range(size)]
    op = ReduceOp.AVG if average else ReduceOp.SUM
    found = run(programs, inputs, INT64, op, tile=64, collective=c, counts=counts)
    for rank, out in enumerate(found):
        want = promised(c, rank, data, counts)
        np.testing.assert_array_equal(out, want // size if average else want)
    assert verify_programs(programs, c, average=average)


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("a", [*BUILT, *MADE], ids=lambda a: f"{a.collective.name}-{a.name}")
def test_results_and_proofs(a: Algorithm, placement: Placement) -> None:
    check(a, placement)
    if a.collective.reduces:
        check(a, placement, average=True)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=2, max_size=10))
@settings(max_examples=25)
def test_any_nested_placement(seats: list[tuple[int, int, int]]) -> None:
    numbers: dict[tuple[int, ...], int] = {}
    levels = [
        Level(name, tuple(numbers.setdefault(seat[:depth], len(numbers)) for seat in seats))
        for name, depth in (("socket", 3), ("node", 2), ("rack", 1))
    ]
    placement = Placement.of(*levels)
    for a in BUILT:
        assert verify(a, len(seats), placement=placement)


@pytest.mark.parametrize("a", BUILT, ids=lambda a: f"{a.collective.name}-{a.name}")
def test_any_root(a: Algorithm) -> None:
    if a.collective.rooted:
        for root in range(10):
            check(a, PLACEMENTS["sockets, nodes, racks"].rotated(root))


def test_all_ranks_hold_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    for a in (a for a in (*BUILT, *MADE) if a.collective is allreduce):
        for placement in PLACEMENTS.values():
            size = ranks(placement)
            data = [rng.standard_normal(90).astype(np.float32) for _ in range(size)]
            first, *others = run(compile_all(a, size, placement=placement), data, FLOAT32)
            for other in others:
                np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


def test_flat_it_is_what_runs_between() -> None:
    for size in (1, 2, 5, 8):
        assert schedule(get("hierarchical"), size).ranks == schedule(get("ring"), size).ranks


def crossings(a: Algorithm, placement: Placement, level: str) -> float:
    """Return what crosses between groups of a level, in messages of the whole size."""
    s = schedule(a, ranks(placement), placement)
    of = next(found.groups for found in placement.levels if found.name == level)
    crossing = sum(
        step.chunks.nchunks
        for rank, steps in enumerate(s.ranks)
        for step in steps
        if step.kind is Kind.SEND and of[rank] != of[step.peers[0]]
    )
    return crossing * s.collective.nblocks(s.size) / s.nchunks


def test_only_what_must_cross_crosses() -> None:
    p = PLACEMENTS["3 x 4"]
    assert crossings(get("hierarchical"), p, "node") == 4  # a ring of three: 2(3 - 1)/3 for each
    assert crossings(get("hierarchical", "broadcast"), p, "node") == 2
    assert crossings(get("hierarchical", "reduce"), p, "node") == 2
    assert crossings(get("hierarchical", "allgather"), p, "node") == 2 * 12  # blocks
    assert crossings(get("hierarchical", "reduce_scatter"), p, "node") == 2 * 12
    racks = PLACEMENTS["2x2x2"]
    assert crossings(get("hierarchical"), racks, "rack") == 2
    assert crossings(get("hierarchical"), racks, "node") == 2 + 2 * 2


def test_one_level_of_several() -> None:
    p = PLACEMENTS["2x2x2"]
    parts = get("ring"), get("ring", "reduce_scatter"), get("ring", "allgather")
    for level, groups in (("node", 4), ("rack", 2)):
        a = hierarchical(*parts, level=level)
        check(a, p)
        assert crossings(a, p, level) == 2 * (groups - 1)
    absent = hierarchical(*parts, level="row")
    assert (
        dump(schedule(absent, 8, p)).splitlines()[1:]
        == (dump(schedule(get("ring"), 8)).splitlines()[1:])
    )


def test_a_level_in_a_level_by_hand() -> None:
    scatter, gather = get("ring", "reduce_scatter"), get("ring", "allgather")
    racks = hierarchical(get("ring"), scatter, gather, level="rack")
    a = hierarchical(racks, scatter, gather, level="node")
    check(a, PLACEMENTS["2x2x2"])
    assert crossings(a, PLACEMENTS["2x2x2"], "rack") == 2


def test_names_say_what_it_is_made_of() -> None:
    assert MADE[0].name == "hierarchical_ring_ring_halving_doubling"
    assert MADE[3].collective.name == "broadcast"


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(
        UsageError,
        match=r"^hierarchical of allreduce, allreduce, want one of allreduce, reduce_scatter, allg",
    ):
        hierarchical(get("ring"), get("ring"))


def test_parts_may_cut_as_they_like() -> None:
    @algorithm(allreduce)
    def thirds(b: ScheduleBuilder) -> None:
        b.chunks(3)
        for i in range(3):
            for peer in range(b.size):
                if peer != b.rank:
                    b.send(b.input[i], to=peer)
            b.recv_reduce(b.output[i], frm=range(b.size))

    a = hierarchical(thirds, get("ring", "reduce_scatter"), get("ring", "allgather"))
    p = PLACEMENTS["3+1+2"]
    assert schedule(a, 6, p).nchunks == 3 * 3
    check(a, p)
    assert verify(a, 6, placement=p)
