"""No planted fault passes: a mutant that the verifier accepts must run right whatever the order.

Whether a mutant is still right is decided by `oracle`, which runs it, never by the verifier.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import correct
import oracle
import paths
from mutants import Programs, mutate_programs, mutate_schedule
from plain import PLAIN

from pycoll.algorithms import BUILTIN, Algorithm
from pycoll.errors import ScheduleError
from pycoll.program.lower import compile_all, lower
from pycoll.schedule import COLLECTIVES, NotDirect, schedule
from pycoll.schedule.schedule import check_messages
from pycoll.verify import verify_programs

FAMILIES = (BUILTIN, PLAIN)
ROUNDS = 1000  #: each plants one fault in Programs and one in a Schedule


class Mutant(NamedTuple):
    fault: str
    programs: Programs
    algorithm: Algorithm
    average: bool
    slots: int


def without_digest(programs: Programs) -> Programs:
    return tuple(replace(p, digest=0) for p in programs)


def bases(r: random.Random) -> Iterator[tuple[Algorithm, Programs, bool, bool]]:
    """Yield right Programs without end: built-ins, plain and generated ones, in all forms."""
    while True:
        if r.random() < 0.25:
            a, size = r.choice((correct, paths)).generate(r.randrange(10_000))
            size_ok = size <= 5
        else:
            a, size, size_ok = r.choice(r.choice(FAMILIES)), r.choice((2, 3, 4, 5)), True
        average, direct = r.random() < 0.3 and a.collective.reduces, r.random() < 0.3
        if not size_ok or not any(schedule(a, size).ranks):
            continue
        if schedule(a, size).nscratch:
            average = direct = False  # those passes trust the builder's checks of scratch
        try:
            yield a, compile_all(a, size, direct=direct, average=average), average, direct
        except NotDirect:
            yield a, compile_all(a, size, average=average), average, False


def mutants(r: random.Random, counts: Counter[str]) -> Iterator[Mutant]:
    """Yield the mutants that differ from what they were made of."""
    for _, (a, base, average, direct) in zip(range(ROUNDS), bases(r), strict=False):
        slots = 1 if r.random() < 0.1 else 2
        if slots == 1:
            counts["slots halved"] += 1
            yield Mutant("slots halved", base, a, average, slots)
        fault, programs = mutate_programs(base, r)
        same = without_digest(programs) == without_digest(base)
        counts["same Programs" if same else "mutants of Programs"] += 1
        if not same:
            yield Mutant(fault, programs, a, average, slots)
        fault, steps = mutate_schedule(schedule(a, len(base)), r)
        try:
            if direct or average:
                check_messages(steps)  # these passes look at both ends of a message
            ranks = range(len(base))
            programs = tuple(lower(steps, k, direct=direct, average=average) for k in ranks)
        except ScheduleError:
            counts["mutants of Schedules"] += 1
            counts["refused by the passes"] += 1
            continue
        same = without_digest(programs) == without_digest(base)
        counts["same Programs" if same else "mutants of Schedules"] += 1
        if not same:
            yield Mutant(fault, programs, a, average, slots)


def test_every_mutant_that_is_not_equivalent_is_rejected() -> None:
    r, counts = random.Random(20), Counter[str]()
    blind = seen = 0
    for m in mutants(r, counts):
        try:
            verify_programs(m.programs, m.algorithm.collective, slots=m.slots, average=m.average)
        except ScheduleError as error:
            counts["rejected"] += 1
            counts[m.algorithm.collective.name] += 1
            counts[type(error).__name__] += 1
            if counts["rejected"] % 10 == 0:
                seen += 1
                blind += not runs_wrong(m)
            continue
        counts["accepted, equivalent"] += 1
        found = oracle.wrong(m.programs, m.algorithm.collective, slots=m.slots, average=m.average)
        assert not found, f"accepted {m.fault} in {m.algorithm.name}, yet {found}"
    total = counts["mutants of Programs"] + counts["mutants of Schedules"] + counts["slots halved"]
    print(f"{total} mutants: {dict(counts)}; the oracle misses {blind} of {seen} rejected")
    assert total >= 1000
    assert all(counts[name] >= 20 for name in COLLECTIVES)
    assert blind <= seen // 20, "the oracle is too weak to judge equivalence"


def runs_wrong(m: Mutant) -> bool:
    try:
        return bool(
            oracle.wrong(m.programs, m.algorithm.collective, slots=m.slots, average=m.average)
        )
    except (IndexError, KeyError):  # not a program at all: it names what is not there
        return True
