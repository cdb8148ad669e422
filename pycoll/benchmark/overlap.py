"""How much of a non-blocking call passes beside computation, as OSU's benchmarks define it.

A turn computes, between the begin of a call and the wait for it, for about as long as the call
alone takes. Overlap is the share of the call's own time by which the whole turn is shorter than one
after the other: 100 % where the call costs the computing rank nothing, 0 where it runs in the wait.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pycoll.benchmark.oob import Gather
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case, accumulates

_SIDE = 24  #: of the matrix that is multiplied: small, so that it stays in the first cache


@dataclass(frozen=True)
class Overlap:
    """Microseconds of one call on the rank whose turns took longest; medians over the repeats."""

    pure: float  #: begun and waited for, nothing between
    compute: float  #: the computation, while the call was on its way
    overall: float  #: the call with the computation
    wrong: int  #: elements, over all ranks and repeats

    @property
    def percent(self) -> float:
        """Share of the pure call's time that passed beside the computation."""
        return max(0.0, min(100.0, 100 * (1 - (self.overall - self.compute) / self.pure)))


class Computation:
    """Work for the processor, in pieces of a few microseconds."""

    def __init__(self) -> None:
        self._a = np.full((_SIDE, _SIDE), 1.0 / _SIDE)
        self._x = np.ones(_SIDE)

    def run(self, pieces: int) -> None:
        """Do so many pieces."""
        a, x = self._a, self._x
        for _ in range(pieces):
            x = a @ x

    def pieces(self, seconds: float) -> int:
        """Return how many pieces take about so long."""
        number = 1
        while True:
            start = time.perf_counter()
            self.run(number)
            took = time.perf_counter() - start
            if took >= min(seconds, 1e-3):
                return max(1, round(number * seconds / took))
            number *= 2


def overlap(
    case: Case, problem: Problem, gather: Gather, repeats: int, calls: int, pure: float
) -> Overlap:
    """Measure one library; all ranks call this alike.

    Args:
        case: What is begun.
        problem: What it solves.
        gather: Compares the ranks' times.
        repeats: How often a block of calls is timed.
        calls: Of a block.
        pure: Seconds of a call alone.
    """
    assert case.begin is not None
    computation = Computation()
    pieces = max(int(n) for n in gather(float(computation.pieces(pure))))
    found: list[tuple[float, float, float]] = []
    turn = functools.partial(_turn, case.begin, computation, pieces)
    wrong = 0
    for _ in range(repeats):
        wrong += problem.check(turn, case.x, case.out, gather)
        if accumulates(case, problem):
            problem.rest(case.x)
        found.append(_block(case, computation, pieces, gather, calls))
    alone, compute, both = (statistics.median(column) * 1e6 for column in zip(*found, strict=True))
    return Overlap(alone, compute, both, int(sum(gather(float(wrong)))))


def _turn(
    begin: Callable[[], Callable[[], object]], computation: Computation, pieces: int
) -> float:
    """Compute beside a call; return the seconds of the computation."""
    wait = begin()
    start = time.perf_counter()
    computation.run(pieces)
    took = time.perf_counter() - start
    wait()
    return took


def _block(
    case: Case, computation: Computation, pieces: int, gather: Gather, calls: int
) -> tuple[float, float, float]:
    """Return the seconds of a call alone, of the computation, and of both."""
    assert case.begin is not None
    gather(0.0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        case.seconds(1)
        pure = case.seconds(calls)
        gather(0.0)
        _turn(case.begin, computation, pieces)
        start = time.perf_counter()
        computed = sum(_turn(case.begin, computation, pieces) for _ in range(calls))
        overall = time.perf_counter() - start
    finally:
        if collecting:
            gc.enable()
    ranks = gather(np.array([overall, pure, computed]) / calls)
    overall, pure, computed = max(map(tuple, ranks))
    return pure, computed, overall
