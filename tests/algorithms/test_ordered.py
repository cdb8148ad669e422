"""Which algorithms fold in the fixed order: what the verifier says, and what floats come to."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from ordered_folds import ORDERED
from promises import provided, spans

from pycoll.algorithms import BUILTIN, get
from pycoll.dtypes import FLOAT64
from pycoll.program.lower import compile_all
from pycoll.program.reference import run
from pycoll.schedule import FLAT, Algorithm, Kind, Level, NotDirect, Placement, schedule
from pycoll.verify.certificates import Form
from pycoll.verify.fixed_order import differs

FOLDING = [a for a in BUILTIN if a.collective.reduces]
#: That fold in the order of the ranks among any number of them, wherever they are.
TABLE = {(collective, name) for collective, names in ORDERED.items() for name in names}
PLACEMENTS = {
    "two hosts": [0, 0, 0, 1, 1, 1],
    "in turn": [0, 1, 0, 1, 0, 1],
    "unequal": [0, 0, 0, 0, 1, 2, 2],
    "one in two places": [0, 0, 1, 1, 1, 0],
}

folding = pytest.mark.parametrize("a", FOLDING, ids=lambda a: f"{a.collective.name}-{a.name}")


def placed(groups: list[int]) -> Placement:
    return Placement.of(Level("node", tuple(groups)))


def exact(a: Algorithm, size: int, placement: Placement, direct: bool) -> bool:
    """Run it on floats, and compare the bits with those of a loop over the ranks."""
    random = np.random.default_rng(size)
    counts = [240] if a.collective.blocks == "one" else [60] * size
    data = [random.normal(size=sum(counts)) * 9.0**rank for rank in range(size)]
    want = functools.reduce(np.add, data)
    inputs = [provided(a.collective, rank, data, counts).copy() for rank in range(size)]
    programs = compile_all(a, size, direct=direct, placement=placement)
    found = run(programs, inputs, FLOAT64, tile=64, collective=a.collective, counts=counts)
    parts = spans(counts)
    return all(
        (out == np.concatenate([want[parts[b]] for b in blocks])).all()
        for rank, out in enumerate(found)
        if (blocks := a.collective.out_blocks(rank, size))
    )


@folding
def test_the_verifier_says_what_the_bits_say(a: Algorithm) -> None:
    for size in (1, 2, 3, 4, 5, 7, 9):
        for direct in (False, True):
            try:
                said = differs(a, size, FLAT, Form(direct, False))
            except NotDirect:
                continue
            assert (said == "") == exact(a, size, FLAT, direct), (size, direct, said)
            assert (said == "") == (differs(a, size, FLAT, Form(direct, True)) == "")


@folding
def test_the_table_is_what_the_verifier_finds(a: Algorithm) -> None:
    known = (a.collective.name, a.name) in TABLE
    found = [not differs(a, size) for size in (4, 5, 8, 13)]
    assert found == [known] * 4
    assert not differs(a, 2)  # of two ranks there is one order


@folding
@pytest.mark.parametrize("groups", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_wherever_the_ranks_are(a: Algorithm, groups: list[int]) -> None:
    placement = placed(groups)
    said = differs(a, len(groups), placement)
    assert (said == "") == exact(a, len(groups), placement, False)
    if (a.collective.name, a.name) in TABLE:
        assert said == ""


def test_long_runs_share_a_message_and_hosts_are_gone_through_once() -> None:
    size, local = 12, 4
    placement = placed([rank // local for rank in range(size)])
    for collective, most in (("allreduce", 4), ("reduce", 3), ("reduce_scatter", 3)):
        s = schedule(get("ordered_hierarchical", collective), size, placement)
        far = sum(
            step.chunks.nchunks
            for rank, steps in enumerate(s.ranks)
            for step in steps
            if step.kind is Kind.SEND and step.peers[0] // local != rank // local
        )
        # The message there, and back; or to the root; or two thirds of it to where they belong.
        assert far / s.nchunks <= most
