"""What a user reads about a choice."""

from __future__ import annotations

import pytest

from pycoll.algorithms import FOR_FIXED_ORDER, names
from pycoll.cost import Choice, Question, Tuning, choose, explain
from pycoll.cost.machine import hosts_of
from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES, Level, Placement

QUESTION = Question("allreduce", 4096, 4, 4)
ROWS = {
    ("allreduce", "ring"): ((8, 2e-6), (4096, 12.1e-6)),
    ("allreduce", "two_shot"): ((8, 4e-6), (4096, 24.2e-6)),
    **{
        ("allreduce", name): ((8, 1e-3), (8192, 1e-3))
        for name in ("one_shot", "recursive_doubling", "halving_doubling", "double_binary_tree")
    },
}


@pytest.mark.parametrize("nbytes", [0, 8, 4096, 1 << 16, 1 << 20, 1 << 26])
@pytest.mark.parametrize("tuning", [None, Tuning(4, rows=ROWS)], ids=["model", "rows"])
def test_it_tells_what_the_choice_chooses(nbytes: int, tuning: Tuning | None) -> None:
    question = QUESTION._replace(nbytes=nbytes)
    told = explain(question, tuning)
    assert told.choice == choose(question, tuning)
    assert {c.algorithm for c in told.candidates} == set(names("allreduce"))
    measured = [c.measured for c in told.candidates if c.measured is not None]
    assert measured == sorted(measured)


def test_the_sentence_says_why() -> None:
    told = explain(QUESTION, Tuning(4, rows=ROWS))
    assert told.why == "Measured 12.1 us at 4 KiB, 2 times faster than two_shot."
    assert explain(QUESTION).why.startswith("Predicted ")


def test_the_table_has_a_line_for_every_candidate() -> None:
    text = str(explain(QUESTION, Tuning(4, rows=ROWS)))
    lines = text.splitlines()
    assert lines[0] == "allreduce, 4 KiB, 4 ranks: ring"
    ring = next(line for line in lines if line.startswith("* "))
    assert ring.split()[:4] == ["*", "ring", "12.1", "us"]
    for name in names("allreduce"):
        assert sum(line[2:].startswith(f"{name} ") for line in lines) == 1


def test_what_cannot_run_says_why() -> None:
    told = explain(QUESTION)
    excluded = [c for c in told.candidates if c.seconds is None]
    assert all(c.note for c in excluded)
    assert all("hierarchical" in c.algorithm or c.algorithm in FOR_FIXED_ORDER for c in excluded)
    assert "is for the fixed order" in {c.note for c in excluded}


def test_an_algorithm_that_is_asked_for_and_is_not_there() -> None:
    with pytest.raises(UsageError, match="algorithm is 'binomial', want one of ring, "):
        explain(QUESTION._replace(wanted="binomial"))


def test_a_direct_form_is_told_of_only_where_there_is_one() -> None:
    large = QUESTION._replace(nbytes=1 << 20)
    assert explain(large._replace(wanted="two_shot")).choice.direct == "two_shot"
    assert explain(large._replace(wanted="ring")).choice.direct is None


def test_nothing_is_once_as_fast_as_another() -> None:
    rows = {("allreduce", "ring"): ((4096, 1.00e-6),), ("allreduce", "bruck"): ((4096, 1.01e-6),)}
    why = explain(QUESTION, Tuning(4, rows=rows)).why
    assert why == "Measured 1.00 us at 4 KiB, 1.01 times faster than bruck."


def test_who_else_chose_is_named() -> None:
    asked = explain(QUESTION._replace(wanted="ring"))
    assert asked.why == "The call asks for ring: asked for."
    told = explain(QUESTION, selector=lambda q: Choice("ring", 64, False, None, "as a test"))
    assert told.why == "The selector chose ring: as a test."


def test_beyond_the_rows_it_says_from_where_on() -> None:
    told = explain(QUESTION._replace(nbytes=1 << 20), Tuning(4, rows=ROWS))
    notes = {c.algorithm: c.note for c in told.candidates}
    assert notes["ring"] == "extrapolated from 4096 bytes"
    assert told.why.startswith("Extrapolated ")
    assert "easured" not in str(told)
    assert told.choice.reason.endswith(" us extrapolated")


def test_between_the_rows_it_says_that_nobody_measured_this_size() -> None:
    told = explain(QUESTION._replace(nbytes=2048), Tuning(4, rows=ROWS))
    assert told.why.startswith("Interpolated ")
    assert {c.algorithm: c.note for c in told.candidates}["ring"] == "interpolated"
    assert "easured" not in str(told)


def test_the_direct_form_is_mentioned() -> None:
    text = str(explain(QUESTION._replace(nbytes=1 << 20)))
    assert "where all arrays are from empty(): two_shot, without copies" in text


@pytest.mark.parametrize(("size", "hosts"), [(1, 1), (12, 1), (12, 2), (300, 2)])
@pytest.mark.parametrize("collective", [*COLLECTIVES, "barrier"])
def test_every_row_says_how_it_was_found_or_why_it_cannot_run(
    collective: str, size: int, hosts: int
) -> None:
    groups = tuple(rank * hosts // size for rank in range(size))
    placement = Placement.of(Level("node", groups))
    question = Question(collective, 1 << 16, size, 4, placement, remote=hosts > 1)
    of = "allreduce" if collective == "barrier" else collective
    measured = next(c.algorithm for c in explain(question).candidates if c.predicted is not None)
    rows = {(of, measured): ((1 << 16, 1e-6),)}
    for tuning in (None, Tuning(size, hosts_of(question), rows=rows)):
        told = explain(question, tuning)
        lines = {line[2:].split()[0]: line for line in str(told).splitlines()[2:]}
        assert [c.algorithm for c in told.candidates if c.algorithm not in lines] == []
        assert {c.algorithm for c in told.candidates} == set(names(of))
        for c in told.candidates:
            assert bool(c.note) if c.predicted is None else bool(c.how)
            assert lines[c.algorithm].endswith("; ".join(x for x in (c.note, c.how) if x))
