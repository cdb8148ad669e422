"""All that can happen among a few ranks that recover is right; and a wrong rule is found."""

from __future__ import annotations

import random
from collections import Counter

import compiled
import pytest
from bootstrap.recovery_model import FAULTS, Model, WrongError, walk
from bootstrap.recovery_model import explore as explore_in_python
from bootstrap.recovery_search import Search, explore

from pycoll.bootstrap.recovery import Ballot, Recovery, Report, Verdict, View, Word

#: Faults while the network holds.
QUIET = ("kill", "late", "deaf", "close")
#: Seconds that millions of moments may take on a loaded machine.
LONG = 1500


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    compiled.require()


def test_three_ranks_and_two_faults_of_any_kinds():
    assert explore(Model(3), 2) > 80_000


def test_four_ranks_of_which_three_die():
    assert explore(Model(4, ("kill",)), 3) > 5_000


def test_one_fault_of_four_ranks():
    assert explore(Model(4), 1) > 100_000


@pytest.mark.timeout(LONG)
def test_every_moment_of_four_ranks_and_two_faults_of_any_kinds():
    assert explore(Model(4), 2) > 10_000_000


@pytest.mark.timeout(LONG)
def test_every_moment_of_four_ranks_and_three_faults_while_the_network_holds():
    assert explore(Model(4, QUIET), 3) > 1_000_000


@pytest.mark.timeout(LONG)
def test_every_moment_of_five_ranks_and_two_faults_that_split_nothing():
    assert explore(Model(5, (*QUIET, "cut")), 2) > 1_000_000


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize(("size", "faults"), [(4, 3), (5, 2)])
def test_every_rank_that_lives_goes_on_after_deaths(size, faults):
    assert explore(Model(size, ("kill", "close")), faults) > 10_000


@pytest.mark.parametrize("size", [4, 5])
def test_long_ways_by_chance(size):
    """Reduced: not all moments, but those of 2,000 ways; up to three faults of any kinds.

    The ways are the same at each run.
    """
    assert walk(Model(size), 3, seed=size, count=2_000) > 20_000


class Literal(Recovery):
    """Counts nobody who is proved dead among those of whom more than half must be here."""

    def lose(self, rank: int, proved: bool) -> list[Word]:
        if proved:
            self.known.add(rank)
        return super().lose(rank, proved)


class Unasked(Recovery):
    """Asks for no majority."""

    def _decide(self) -> list[Word]:
        silent, self.silent = self.silent, set()
        self.dead |= silent
        return super()._decide()


class Hasty(Recovery):
    """Takes a view for chosen once more than half of the voters have accepted it."""

    def accept(self, rank: int, ballot: Ballot) -> list[Word]:
        said = super().accept(rank, ballot)
        present = self.proposal
        if said or self.chosen or not present or 2 * len(self.accepted) <= len(present.voters):
            return said
        self.chosen = True
        return [Word(other, Verdict.CHOSEN, present) for other in present.voters]


class Ignorant(Recovery):
    """Proposes a view of its own, whatever was accepted before."""

    def _perhaps_chosen(self) -> View | None:
        return None


class Forgetful(Recovery):
    """Believes only what is accepted, not what is chosen."""

    def report(self, rank: int, report: Report) -> list[Word]:
        return super().report(rank, report._replace(chosen=None, accepted=()))


class Repeating(Recovery):
    """Numbers all its proposals alike."""

    def _decide(self) -> list[Word]:
        self.turn = 0
        return super()._decide()


class Stubborn(Recovery):
    """Goes on to wait for a voter that has raised."""

    def report(self, rank: int, report: Report) -> list[Word]:
        proposal = self.proposal
        said = super().report(rank, report)
        if report.out and proposal and not self.chosen and not self.over:
            self.proposal = proposal
            return []
        return said


#: A rule, and how many ranks with which faults show that it is wrong.
WRONG = [
    (Literal, 3, ("kill", "deaf"), 2),
    (Unasked, 3, ("split",), 1),
    (Hasty, 3, ("deaf",), 2),
    (Ignorant, 3, ("deaf",), 2),
    (Forgetful, 3, ("kill", "late"), 2),
    (Repeating, 3, ("kill", "deaf"), 2),
    (Stubborn, 3, ("close",), 1),
]
WAYS = 20
RULES = [Recovery, *(make for make, *_ in WRONG)]


def name_of(value):
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("make", "size", "kinds", "faults"), WRONG, ids=name_of)
def test_a_wrong_rule_is_found(make, size, kinds, faults):
    for look in (explore, explore_in_python):
        with pytest.raises(WrongError) as found:
            look(Model(size, kinds, make), faults)
        print(f"{make.__name__}: {found.value}")


# The search in C does what the model says, and misses nothing where it leaves moments out.


@pytest.mark.parametrize(
    ("size", "faults", "kinds"),
    [
        (3, 1, FAULTS),
        (4, 3, ("kill",)),
        (4, 1, (*QUIET, "cut")),
    ],
    ids=str,
)
def test_the_search_finds_as_many_moments_as_the_model(size, faults, kinds):
    model = Model(size, kinds)
    assert explore(model, faults, reduce=False) == explore_in_python(model, faults)


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize(("size", "faults"), [(3, 2), (4, 1)])
def test_every_moment_of_the_model_is_found(size, faults):
    model = Model(size)
    assert explore(model, faults, reduce=False) == explore_in_python(model, faults)


@pytest.mark.parametrize("make", RULES, ids=name_of)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_after_any_moment_comes_what_the_model_says(size, make):
    """Moments of ways by chance, with up to three faults of any kinds."""
    chance, model = random.Random(size), Model(size, make=make)
    with Search(model, model.begin(3), reduce=False) as search:
        for _ in range(30):
            now = model.begin(3)
            while following := [then for _, then in model.after(now)]:
                assert Counter(search.after(now)) == Counter(following)
                now = chance.choice(following)


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("make", RULES, ids=name_of)
@pytest.mark.parametrize(
    ("size", "faults", "kinds"),
    [
        (3, 2, FAULTS),
        (4, 3, ("kill",)),
        (4, 2, QUIET),
        (4, 1, FAULTS),
    ],
    ids=str,
)
def test_every_end_is_reached_by_what_is_tried(size, faults, kinds, make):
    model = Model(size, kinds, make)
    assert ends(model, model.begin(faults), False) == ends(model, model.begin(faults), True)


@pytest.mark.parametrize("make", RULES, ids=name_of)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_end_is_reached_from_where_ways_by_chance_lead(size, make):
    """From moments behind the last of up to four faults of any kinds."""
    chance, model = random.Random(size), Model(size, make=make)
    for _ in range(WAYS):
        now = model.begin(chance.randrange(1, 5))
        while now[3] and (events := list(model.after(now))):
            kind = chance.choice(sorted({event[0] for event, _ in events}))
            now = chance.choice([then for event, then in events if event[0] == kind])
        assert ends(model, now, False) == ends(model, now, True)


def ends(model, begin, reduce):
    with Search(model, begin, reduce, heedless=True) as search:
        search.run()
        return search.ends()
