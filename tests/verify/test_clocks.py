"""The order that is walked back for says what vector clocks of all threads say."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import correct
import paths
import pytest
from assemble import (
    data_from,
    data_to,
    inp,
    local,
    loop,
    move,
    out,
    program,
    signal,
    slot,
    wait,
)
from dense import DenseOrder
from mutants import Programs, channels_of, mutate_programs, relink

from pycoll.algorithms import BUILTIN
from pycoll.errors import RaceError, ScheduleError
from pycoll.program.isa import Direction, EdgeKind, Op
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.schedule import Collective, NotDirect, allreduce
from pycoll.verify import symbolic_run, verify_programs
from pycoll.verify.network import Network
from pycoll.verify.order import Order

SEEN: Counter[str] = Counter()


class Both:
    """Both kinds of clocks side by side; every access must have one answer."""

    def __init__(self, network: Network) -> None:
        self.clocks = (Order(network), DenseOrder(network))

    def release(self, thread: int) -> Any:
        return tuple(clock.release(thread) for clock in self.clocks)

    def acquire(self, thread: int, release: Any, twist: int) -> None:
        assert twist == 0  # only networks of representatives have any
        for clock, what in zip(self.clocks, release, strict=True):
            clock.acquire(thread, what)

    def _both(self, name: str, *arguments: Any) -> None:
        answers: list[RaceError | None] = []
        for clock in self.clocks:
            try:
                getattr(clock, name)(*arguments)
                answers.append(None)
            except RaceError as error:
                answers.append(error)
        assert str(answers[0]) == str(answers[1])
        SEEN[f"{name} {'ordered' if answers[0] is None else 'races'}"] += 1
        if answers[0] is not None:
            raise answers[0]

    def access(self, *arguments: Any) -> None:
        self._both("access", *arguments)

    def finish(self) -> None:
        self._both("finish")


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    monkeypatch.setattr(symbolic_run, "Order", Both)


def proved(programs: Programs, collective: Collective) -> bool:
    try:
        return bool(verify_programs(programs, collective))
    except ScheduleError:
        return False


def without(programs: Programs, kind: EdgeKind, r: random.Random) -> Programs:
    """Return the programs without the signals and waits of one edge, at both its ends."""
    there = [(p.rank, e) for p in programs for e in p.edges if e.kind == kind]
    if not there:
        return programs
    rank, gone = r.choice(there)
    back = gone._replace(peer=rank, direction=Direction(1 - gone.direction))
    result = list(programs)
    for victim, edge in ((rank, gone), (gone.peer, back)):
        number = result[victim].edges.index(edge)
        channels = [
            [i for i in code if i.op not in (Op.WAIT, Op.SIGNAL) or i.edge != number]
            for code in channels_of(result[victim])
        ]
        result[victim] = relink(result[victim], channels)
    return tuple(result)


def test_on_every_builtin_with_shared_memory() -> None:
    r = random.Random(7)
    for algorithm in BUILTIN:
        for size in (2, 3, 4, 7, 8):
            assert proved(compile_all(algorithm, size), algorithm.collective)
            try:
                direct = compile_all(algorithm, size, direct=True)
            except NotDirect:
                continue
            assert proved(direct, algorithm.collective)
            assert not proved(without(direct, EdgeKind.DONE, r), algorithm.collective)
    assert SEEN["access ordered"] > 5_000
    assert SEEN["finish races"] > 30


def test_on_faulty_networks_at_random() -> None:
    r = random.Random(7)
    for _ in range(300):
        algorithm, size = r.choice((correct, correct, paths)).generate(r.randrange(10_000))
        if size > 6:
            continue
        direct = r.random() < 0.3
        try:
            base = compile_all(algorithm, size, direct=direct)
        except NotDirect:
            base = compile_all(algorithm, size)
        proved(base, algorithm.collective)
        for _ in range(3):
            _, mutant = mutate_programs(base, r)
            proved(mutant, algorithm.collective)
        for kind in (EdgeKind.LOCAL, EdgeKind.DONE):
            proved(without(base, kind, r), algorithm.collective)
    assert SEEN["access races"] > 30


def by_way_of_a_peer(*, told: bool) -> list[Program]:
    """Rank 0 writes OUT on both channels; rank 1 may tell the second that the first is done."""
    first = [wait(1), wait(0), move(inp(0), slot(1, 0), to=(out(0), slot(0, 0)))]
    first += [signal(0), signal(1)]
    second = [wait(2), move(slot(2, 0), to=out(0)), signal(2)]
    edges = (data_to(1), data_from(1), data_from(1, 1))
    zero = program(0, 2, loop(*first), loop(*second), edges=edges)
    first = [wait(0), move(inp(0), to=slot(0, 0)), signal(0)]
    first += [wait(1), move(slot(1, 0), to=out(0)), signal(1), signal(3)]
    second = [wait(4), wait(2), move(out(0), to=slot(2, 0)), signal(2)]
    if not told:
        second = [wait(2), move(inp(0), to=slot(2, 0)), signal(2), wait(4)]
    edges = (data_to(0), data_from(0), data_to(0, 1), *local(1, 0, 1))
    return [zero, program(1, 2, loop(*first), loop(*second), edges=edges)]


def test_an_order_by_way_of_another_rank_is_found() -> None:
    assert verify_programs(by_way_of_a_peer(told=True), allreduce)
    with pytest.raises(RaceError, match="with no order between the two"):
        verify_programs(by_way_of_a_peer(told=False), allreduce)
