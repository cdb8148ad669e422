"""What survivors have inherited: what all of them know alike, found without a word more."""

from __future__ import annotations

import pytest

from pycoll.cost import Choice
from pycoll.runtime.plan.earlier import SUMMARY, TAIL, Choices, Subject


def subject(number: int) -> Subject:
    return Subject("allreduce", 8 * number, None, "float32", True)


def knows(*numbers: int, algorithm: str = "ring", reason: str = "") -> Choices:
    """Return what a rank begins with that has chosen for these lengths, in this order."""
    before = Choices()
    for number in numbers:
        before.note(subject(number), Choice(algorithm, 64, False, None, reason))
    return before.heirs()


def agree(*all_: Choices) -> list[bool]:
    summaries = [one.summary() for one in all_]
    assert {len(one) for one in summaries} == {SUMMARY.size}
    for one in all_:
        one.agree(summaries)
    return [one.alike for one in all_]


def known(choices: Choices) -> list[Subject]:
    return list(choices._inherited)


@pytest.mark.parametrize("count", range(6))
def test_who_know_the_same_keep_it(count: int) -> None:
    ranks = [knows(*range(count), reason=f"rank {rank}") for rank in range(3)]
    assert agree(*ranks) == [True] * 3
    assert [known(one) for one in ranks] == [[subject(n) for n in range(count)]] * 3


@pytest.mark.parametrize("less", range(1, TAIL))
@pytest.mark.parametrize("count", range(6))
def test_what_some_do_not_know_yet_all_forget(count: int, less: int) -> None:
    ranks = [knows(*range(count)), knows(*range(count + less)), knows(*range(count + 1))]
    assert agree(*ranks) == [True] * 3
    assert [known(one) for one in ranks] == [[subject(n) for n in range(count)]] * 3


@pytest.mark.parametrize(
    "other",
    [
        knows(0, 2, 1),  # in another order
        knows(0, 1, 3),
        knows(0, 1, 2, algorithm="tree"),
        knows(1, 2),
        knows(*range(3 + TAIL)),  # too much more
        knows(),
    ],
)
def test_who_know_otherwise_find_that_out(other: Choices) -> None:
    ranks = [knows(0, 1, 2), other, knows(0, 1, 2)]
    before = [known(one) for one in ranks]
    assert agree(*ranks) == [False] * 3
    assert [known(one) for one in ranks] == before


def test_what_is_chosen_later_comes_behind_what_was_inherited() -> None:
    choices = knows(0, 1)
    choices.note(subject(2), Choice("tree", 64, False, None, ""))
    choices.note(subject(0), Choice("tree", 64, False, None, ""))
    heirs = choices.heirs()
    assert known(heirs) == [subject(0), subject(1), subject(2)]
    assert [heirs._inherited[subject(n)].algorithm for n in range(3)] == ["tree", "ring", "tree"]
