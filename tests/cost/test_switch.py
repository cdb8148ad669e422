"""What NVLink SHARP does to the choice: bytes on links, seconds, and whose direct form runs."""

from __future__ import annotations

import math

import pytest

from pycoll.algorithms import get
from pycoll.cost import Choice, Question, Switch, choose, explain
from pycoll.cost.switch import Served, served
from pycoll.program.isa import MAX_DESTINATIONS
from pycoll.program.lower import compile_program
from pycoll.schedule import COLLECTIVES

MIB = 1 << 20


def asked(collective: str, nbytes: int, size: int, switch: Switch) -> Question:
    return Question(collective, nbytes, size, cores=1, device="cuda", switch=switch)


def form(collective: str, name: str, nbytes: int, size: int, switch: Switch) -> Served:
    found = served(asked(collective, nbytes, size, switch))
    return next(one for one in found if one.algorithm == name)


def chosen(collective: str, nbytes: int, size: int, switch: Switch) -> Choice:
    return choose(asked(collective, nbytes, size, switch))


def test_an_allreduce_counted_by_hand() -> None:
    """64 MiB among 8: a rank has 8 MiB folded, and stores them to all; so do the others."""
    found = form("allreduce", "two_shot", 64 * MIB, 8, Switch.FOLDS)
    # Out go 8 MiB to each of 8 folds, and the 8 MiB that are stored; in come the 8 MiB that were
    # folded, and what all 8 store.
    assert (found.crossing.out, found.crossing.into) == (72 * MIB, 72 * MIB)
    link = 72 * MIB / 400e9  # 188.7 us; 16 loads of 512 KiB, of 1 us each, are shorter
    # The launch; READY with its release, its way, and the fence between addresses; DONE likewise.
    fixed = 5e-6 + (0.5e-6 + 1e-6 + 0.5e-6) + (0.5e-6 + 0.5e-6 + 1e-6)
    further = math.ceil(8 / MAX_DESTINATIONS) - 1
    ready = 40 * 3 + (80 * 3 + 2 * 250) + 2 * 50
    move = (80 * 3 + 6 * 30 + 50) + further * (30 * 3 + 2 * 30)
    done = 50 + 7 * (30 * 3 + 30) + 7 * (20 * 3 + 30 + 250)
    assert found.seconds == pytest.approx(link + fixed + (ready + move + done) / 1.7e9)


@pytest.mark.parametrize(
    ("collective", "name", "switch", "out", "into"),
    [  # of 8 MiB among 4
        ("allreduce", "two_shot", Switch.FOLDS, 10, 10),
        ("allreduce", "two_shot", Switch.STORES, 6 + 2, 6 + 8),
        ("allreduce", "flat_tree", Switch.FOLDS, 16, 16),
        ("allreduce", "flat_tree", Switch.STORES, 8, 24 + 8),
        ("broadcast", "direct", Switch.STORES, 8, 8),
        ("allgather", "direct", Switch.STORES, 2, 8),
        ("reduce", "direct", Switch.FOLDS, 8, 8),
        ("reduce", "two_shot", Switch.FOLDS, 8 + 2, 8),
        ("reduce_scatter", "direct", Switch.FOLDS, 8, 2),
    ],
)
def test_what_crosses_the_busiest_link(
    collective: str, name: str, switch: Switch, out: int, into: int
) -> None:
    crossing = form(collective, name, 8 * MIB, 4, switch).crossing
    assert (crossing.out, crossing.into) == (out * MIB, into * MIB)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_what_is_served_has_a_direct_form(size: int) -> None:
    for collective in COLLECTIVES:
        for one in served(asked(collective, MIB, size, Switch.FOLDS)):
            compile_program(get(one.algorithm, collective), size, 0, direct=True)
        assert not served(asked(collective, MIB, size, Switch.NONE))
    for collective in ("reduce", "reduce_scatter"):
        assert not served(asked(collective, MIB, size, Switch.STORES))


def test_it_is_chosen_where_it_is_faster() -> None:
    assert chosen("allreduce", 64 * MIB, 8, Switch.FOLDS).direct == "two_shot"
    assert chosen("reduce", 64 * MIB, 8, Switch.FOLDS).direct == "direct"
    # Of two ranks each has the other's bytes once as it is; the switch sends them its own, too.
    assert chosen("allreduce", 64 * MIB, 2, Switch.FOLDS).direct is None
    assert chosen("allgather", 64 * MIB, 2, Switch.STORES).direct is None
    # To say where arrays are takes longer than to send some packets.
    assert chosen("allreduce", 16 << 10, 8, Switch.FOLDS).direct is None
    assert chosen("allreduce", 8, 8, Switch.FOLDS).direct is None
    # What the switch has no part in is as without it.
    assert chosen("alltoall", 64 * MIB, 8, Switch.FOLDS).direct == "direct"
    assert chosen("reduce", 64 * MIB, 8, Switch.STORES).direct == "direct"


@pytest.mark.parametrize("collective", [*COLLECTIVES, "barrier"])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 65])
def test_nothing_else_depends_on_it(collective: str, size: int) -> None:
    for nbytes in (8, 1 << 15, 1 << 20, 1 << 26):
        without = chosen(collective, nbytes, size, Switch.NONE)
        for switch in (Switch.STORES, Switch.FOLDS):
            found = chosen(collective, nbytes, size, switch)
            assert found._replace(direct=None) == without._replace(direct=None)
            if without.direct is None:
                assert found.direct is None
            host = asked(collective, nbytes, size, switch)._replace(device="cpu", cores=size)
            assert choose(host) == choose(host._replace(switch=Switch.NONE))


def test_explain_says_so() -> None:
    told = str(explain(asked("allreduce", 64 * MIB, 8, Switch.FOLDS)))
    assert (
        "Where all arrays are from empty() NVLink SHARP folds and stores: two_shot is predicted to "
        "take 200.5 us, as its busiest link carries 1.12 times its bytes to the switch and 1.12 "
        "times its bytes from it." in told
    )
    assert "where all arrays are from empty(): two_shot, without copies" in told
    assert "SHARP" not in str(explain(asked("allreduce", 64 * MIB, 8, Switch.NONE)))
