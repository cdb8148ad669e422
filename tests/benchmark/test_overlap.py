"""How much of a call passes beside computation, on calls that take as long as the test says."""

from __future__ import annotations

import numpy as np
import pytest

from pycoll.benchmark import overlap
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case
from pycoll.dtypes import ReduceOp


@pytest.fixture
def clock(monkeypatch):
    """Time that only calls and computation move; a piece of computation takes 1 us."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def compute(self, pieces):
        now[0] += pieces * 1e-6

    monkeypatch.setattr(overlap.Computation, "run", compute)
    return now


def case(problem, clock, beside, wrong=0):
    """Return a call of 100 us of which a share passes whatever the caller does meanwhile."""
    x, out = np.empty_like(problem.input), np.empty_like(problem.input)

    def begin():
        begun = clock[0]

        def wait():
            rest = max(0.0, begun + 100e-6 * beside - clock[0])
            clock[0] += rest + 100e-6 * (1 - beside)
            out[:] = problem.expected
            out[:wrong] += 1

        return wait

    return Case(
        "a", "a", "t", "numpy", "async", x, out, lambda: begin()(), begin=begin, in_place=False
    )


@pytest.mark.parametrize("beside", [0.0, 0.25, 1.0])
def test_overlap_is_the_share_that_passes_beside_computation(clock, beside):
    problem = Problem(OPERATIONS["allreduce"], 10, "float32", ReduceOp.SUM, 0, 2)
    call = case(problem, clock, beside)
    found = overlap.overlap(call, problem, lambda value: [value], 3, 4, 100e-6)
    assert found.pure == pytest.approx(100)
    assert found.compute == pytest.approx(100)
    assert found.overall == pytest.approx(200 - 100 * beside)
    assert found.percent == pytest.approx(100 * beside, abs=1e-6)
    assert found.wrong == 0


def test_the_rank_whose_turns_take_longest_counts(clock):
    problem = Problem(OPERATIONS["allreduce"], 10, "float32", ReduceOp.SUM, 0, 2)
    call = case(problem, clock, 1.0)

    def gather(value):
        return [value, value * np.array([3.0, 1.0, 1.0]) if np.ndim(value) else value]

    found = overlap.overlap(call, problem, gather, 1, 4, 100e-6)
    assert (found.overall, found.pure, found.compute) == pytest.approx((300, 100, 100))
    assert found.percent == 0  # and not less


def test_what_is_wrong_beside_computation_is_counted(clock):
    problem = Problem(OPERATIONS["allreduce"], 10, "float32", ReduceOp.SUM, 0, 2)
    found = overlap.overlap(
        case(problem, clock, 0.5, wrong=2), problem, lambda value: [value], 3, 1, 100e-6
    )
    assert found.wrong == 3 * 2
