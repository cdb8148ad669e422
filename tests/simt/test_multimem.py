"""The direct form through a multicast address of the heaps, on threads, under ThreadSanitizer.

The switch is played over a table of the ranks' heaps: it folds from the last rank to the first, as
it promises no order, and each alias has a cache of its own (native/gpu/kernel/target_simt.h).
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from simulation import SLOT_BYTES, Case, programs
from test_simt import (
    KERNEL,
    KERNELS,
    RACE,
    TARGET,
    Change,
    Run,
    case,
    driver,
    every,
    has_direct,
    of,
    one,
    run,
    survivors,
)

import pycoll
from pycoll.algorithms import BUILTIN, get
from pycoll.dtypes import FLOAT32, FLOAT64, INT8, INT32, ReduceOp
from pycoll.program.isa import MAX_DESTINATIONS
from pycoll.schedule import Algorithm

__all__ = ["every", "one", "run"]  # fixtures

pytestmark = pytest.mark.native

MULTIMEM = "gpu/kernel/multimem.h"


def counted(run: Run, driver: Path, cases: list[Case]) -> tuple[int, int]:
    """Run cases; return how many units were folded by the switch, and stored to all ranks."""
    done = run(driver, "counted", cases)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    lines = dict(reversed(line.split()) for line in done.stdout.splitlines())
    assert int(lines["cases"]) == len(cases)
    return int(lines["folded"]), int(lines["stored"])


def direct(c: Case, **more: object) -> Case:
    """Return a case in the direct form, with a tile that fits."""
    average = c.op is ReduceOp.AVG
    widest = max(programs(c.algorithm, c.size, average, form)[0].widest for form in (False, True))
    tile = min(c.tile, SLOT_BYTES // widest // 64 * 64)
    return replace(c, direct=True, tile=tile, **more)  # type: ignore[arg-type]


def switched(collective: str, name: str) -> Case:
    """Return a case with equal offsets: where only the root has an input, that is its output."""
    return direct(of(collective, name, in_place=collective == "broadcast"), multicast=1)


def with_direct(size: int) -> list[Algorithm]:
    return [a for a in BUILTIN if has_direct(a, size)]


@pytest.mark.parametrize("size", range(2, 9))
def test_every_direct_form(run: Run, every: Path, size: int) -> None:
    """At equal offsets and at others: no bit of what is asked for without saying so changes."""
    drawn = random.Random(size)
    cases = []
    for number, algorithm in enumerate(with_direct(size)):
        for turn in range(3):
            c = case(drawn, number + 3 * turn + size, algorithm, size, False)
            c = direct(c, lanes=1 + number % 2, multicast=1)
            cases += [c, replace(c, apart=number % size), replace(c, stray=number % size)]
    folded, stored = counted(run, every, cases)
    assert stored
    assert folded


#: What stores to all ranks, and what the switch folds.
STORE, FOLD = (
    (("allreduce", "two_shot"), ("allreduce", "flat_tree"), ("broadcast", "direct"),
     ("allgather", "direct")),
    (("allreduce", "two_shot"), ("allreduce", "flat_tree"), ("reduce", "two_shot"),
     ("reduce", "direct"), ("reduce_scatter", "direct")),
)  # fmt: skip
EVERY = sorted({*STORE, *FOLD, ("alltoall", "direct"), ("gather", "direct")})


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_what_goes_by_the_switch(run: Run, one: Path, collective: str, name: str) -> None:
    c = switched(collective, name)
    folded, stored = counted(run, one, [c])
    assert bool(folded) == ((collective, name) in FOLD)
    assert bool(stored) == ((collective, name) in STORE)


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_nothing_does_where_a_rank_has_its_arrays_elsewhere(
    run: Run, one: Path, collective: str, name: str
) -> None:
    c = switched(collective, name)
    cases = [replace(c, apart=rank, shift=shift) for rank in range(3) for shift in (64, 4)]
    assert counted(run, one, cases) == (0, 0)


def test_without_a_multicast_address_nothing_goes_there(run: Run, one: Path) -> None:
    assert counted(run, one, [direct(of("allreduce", "two_shot"))]) == (0, 0)


@pytest.mark.parametrize("offset", [0, 1, 4, 8, 12, 36])
def test_what_is_beside_whole_units_goes_to_all_as_well(run: Run, one: Path, offset: int) -> None:
    cases = [
        direct(
            Case(get(name), size, INT32, ReduceOp.SUM, (count,), tile=tile, in_place=in_place),
            multicast=1,
            offset=offset,
        )
        for name in ("two_shot", "flat_tree")
        for size in (2, 5)
        for count in (1, 3, 37, 301)
        for tile in (64, 192)
        for in_place in (False, True)
    ]
    folded, stored = counted(run, one, cases)
    assert bool(folded) == bool(stored) == (offset != 1)  # an element that is not aligned


def test_floats_are_folded_by_the_ranks(run: Run, every: Path) -> None:
    """Their sums, unless the user lets the switch round: it has stored them all the same."""
    for dtype, op in ((FLOAT64, ReduceOp.SUM), (FLOAT32, ReduceOp.AVG), (INT8, ReduceOp.MAX)):
        c = direct(Case(get("two_shot"), 4, dtype, op, (301,)), multicast=1)
        folded, stored = counted(run, every, [c])
        assert (folded, bool(stored)) == (0, True)


def test_floats_are_folded_by_the_switch_if_asked(run: Run, every: Path) -> None:
    pair = direct(Case(get("two_shot"), 2, FLOAT64, ReduceOp.SUM, (301,)), multicast=2)
    pairs = [pair, replace(pair, dtype=FLOAT32, op=ReduceOp.AVG)]
    assert counted(run, every, pairs)[0]  # a sum of two has no order
    done = run(every, "run", [replace(pair, size=5)])
    assert done.returncode == 1  # and this one shows that the switch has one of its own
    byte = replace(pair, dtype=INT8, op=ReduceOp.MAX, size=5)
    assert counted(run, every, [byte])[0] == 0  # which no switch folds


def test_a_rank_waits_until_its_arrays_are_its_own(run: Run, one: Path) -> None:
    c = direct(of("allreduce", "two_shot"), multicast=1)
    assert run(one, "run", [c]).returncode == 0
    assert survivors(run, one, c, ["sync", "done"]) == []


#: A change of the kernels, which this suite has to find.
CHANGES: dict[str, Change] = {
    "fence behind READY": (
        MULTIMEM, "    pc__fence_alias();\n    return apart;", "    return apart;",
    ),
    "fence before DONE": (
        MULTIMEM,
        "    if (pc__thread() == 0 && call->shared->multicast)\n        pc__fence_alias();",
        "    (void)call;",
    ),
    "barrier before that fence": (
        KERNEL, "        call->over = pc__barrier(call->shared, call->dead);\n"
        "        pc__leave_multicast(call);",
        "        pc__leave_multicast(call);\n"
        "        call->over = pc__barrier(call->shared, call->dead);",
    ),
    "offsets of inputs": (
        MULTIMEM, "apart |= arrays->in - their_heap != shared->in - heap;", ";",
    ),
    "offsets of outputs": (
        MULTIMEM, "apart |= arrays->out - their_heap != shared->out - heap;", ";",
    ),
    "input and output lie alike": (
        MULTIMEM, "            apart |= ((in ^ out) & 15u) != 0;", "            ;",
    ),
    "what follows does the ends": (
        MULTIMEM, "    return ((begin | nbytes) & 15u) == 0;", "    return begin || nbytes;",
    ),
    "the switch's stores": (
        TARGET, "for (uint32_t k = 0; k < m->nmembers; k++)",
        "for (uint32_t k = 0; k + 1 < m->nmembers; k++)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(run: Run, change: str) -> None:
    two_shot = direct(of("allreduce", "two_shot"), multicast=1)
    cases = [
        two_shot,
        replace(two_shot, apart=1),
        replace(two_shot, counts=(301,), offset=4),
        replace(switched("broadcast", "direct"), apart=1),
        replace(switched("reduce_scatter", "direct"), apart=1),
        replace(two_shot, counts=(301,), uneven=4),
        # So many that a store to all is two instructions.
        direct(
            Case(get("direct", "allgather"), MAX_DESTINATIONS + 1, INT32, ReduceOp.SUM, (301,) * 9),
            multicast=1,
            offset=4,
        ),
    ]
    changed = driver(KERNELS[:1], CHANGES[change])
    assert any(run(changed, "run", [c]).returncode for c in cases)
    assert {run(changed, "run", [c]).returncode for c in cases} <= {0, 1, RACE, -6, -11}


def _to_one_and_back(b: pycoll.ScheduleBuilder, at_once: bool, together: bool) -> None:
    """Rank 0 folds two chunks, of all ranks at once or not; each goes to all together, or not."""
    b.chunks(2)
    x, peers = b.output, range(1, b.size)
    if b.rank:
        for c in (0, 1):
            b.send(x[c], to=0)
        for c in (0, 1):
            b.recv(x[c], frm=0)
        return
    for c in (0, 1):
        for some in [range(b.size)] if at_once else peers:
            b.recv_reduce(x[c], frm=some)
        for p in peers if together else ():
            b.send(x[c], to=p)
    for p in () if together else peers:
        for c in (0, 1):
            b.send(x[c], to=p)


@pycoll.algorithm(pycoll.allreduce)
def by_chunk(b: pycoll.ScheduleBuilder) -> None:
    """All at once, and to all together."""
    _to_one_and_back(b, True, True)


@pycoll.algorithm(pycoll.allreduce)
def sent_by_rank(b: pycoll.ScheduleBuilder) -> None:
    """All at once, then to one after the other."""
    _to_one_and_back(b, True, False)


@pycoll.algorithm(pycoll.allreduce)
def folded_by_rank(b: pycoll.ScheduleBuilder) -> None:
    """One after the other, from what stands in the output: that is no place for two addresses."""
    _to_one_and_back(b, False, True)


@pytest.mark.parametrize(
    ("algorithm", "folds", "stores"),
    [(by_chunk, True, True), (sent_by_rank, True, False), (folded_by_rank, False, False)],
)
def test_what_else_touches_the_output_keeps_it_from_the_switch(
    run: Run, one: Path, algorithm: Algorithm, folds: bool, stores: bool
) -> None:
    for in_place in (False, True):
        c = Case(algorithm, 3, INT32, ReduceOp.SUM, (301,), in_place=in_place)
        folded, stored = counted(run, one, [direct(c, multicast=1, offset=4)])
        assert (bool(folded), bool(stored)) == (folds, stores)
