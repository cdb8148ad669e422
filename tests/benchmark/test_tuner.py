"""The tuner's choice of what is measured, and what is kept of it."""

from __future__ import annotations

from pycoll.benchmark.calibration import Cell
from pycoll.benchmark.tuner import distinct, left_out, tuned
from pycoll.cost import Question


def test_algorithms_that_do_the_same_are_measured_once():
    two = distinct("allreduce", Question("allreduce", 8, 2, 2))
    eight = distinct("allreduce", Question("allreduce", 8, 8, 8))
    assert {"one_shot", "two_shot"} <= set(two)
    assert "recursive_doubling" not in two  # of two ranks it is one_shot
    assert "recursive_doubling" in eight
    assert not any("hierarchical" in name for name in eight)


def test_what_the_choice_does_not_offer_is_not_measured():
    many = Question("allreduce", 8, 512, 8)
    out = left_out("allreduce", many)
    assert out["one_shot"] == "touches 511 peers, more than 64"
    assert "ring" not in out
    measured = distinct("allreduce", many)
    assert "ring" in measured
    assert not out.keys() & set(measured)
    assert left_out("allreduce", many._replace(size=64)) == {}


def test_what_was_measured_is_kept_by_algorithm():
    medians = {
        Cell("allreduce", 64, "two_shot"): 3e-6,
        Cell("allreduce", 8, "one_shot"): 1e-6,
        Cell("allreduce", 8, "two_shot"): 2e-6,
    }
    tuning = tuned(Question("allreduce", 8, 2, 2), medians)
    assert tuning.rows["allreduce", "two_shot"] == ((8, 2e-6), (64, 3e-6))
