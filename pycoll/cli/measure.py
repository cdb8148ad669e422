"""The timing rules of the benchmark; knows no library.

Libraries alternate: in each repeat every one of them has one turn, and the order rotates. A turn
resets the arrays, makes one call whose result is checked at every element, then times a block of
back-to-back calls, long enough to be told from the clock's noise. The time of a repeat is that of
the slowest rank.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pycoll.cli.data import Array, Problem

#: Gives every rank the list of what each rank passed; all ranks leave it together.
Gather = Callable[[float], list[float]]

BLOCK_SECONDS = 0.002
METHOD = (
    "libraries alternate within one run; per repeat one block of back-to-back calls each, in "
    f"rotated order, at least {BLOCK_SECONDS * 1e3:g} ms long, times the ranks that share a core; "
    "calls that no rank has to wait for overlap; "
    "the time of a repeat is the slowest rank's; min, median and p99 are over the repeats; garbage "
    "collector off in blocks; every element checked on random data, outputs poisoned"
)


@dataclass(frozen=True)
class Case:
    """One library's call on given arrays."""

    library: str
    algorithm: str
    transport: str
    arrays: str  #: "numpy" or "empty" (from ``comm.empty``)
    call: str  #: "call" or "plan"
    x: Array
    out: Array
    run: Callable[[], object]
    block: Callable[[int], float] | None = None  #: times a block by itself (native code)
    in_place: bool = False  #: ``x`` and ``out`` are one memory, or one is a part of the other

    def seconds(self, calls: int) -> float:
        """Return how long ``calls`` calls took, one behind the other."""
        if self.block is not None:
            return self.block(calls)
        run, turns = self.run, itertools.repeat(None, calls)
        start = time.perf_counter()
        for _ in turns:
            run()
        return time.perf_counter() - start


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call, over the repeats, and the wrong elements of all checks."""

    samples: tuple[float, ...]
    wrong: int

    @property
    def low(self) -> float:
        """The fastest repeat."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """The median repeat."""
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The 99th percentile by nearest rank: with under 100 repeats, the slowest."""
        return sorted(self.samples)[-(-len(self.samples) * 99 // 100) - 1]


def measure(
    cases: Sequence[Case],
    problem: Problem,
    gather: Gather,
    repeats: int,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Timing]:
    """Time the cases against each other; all ranks must pass equal cases in equal order."""
    calls = []
    for case in cases:
        progress(f"{case.library}: warming up")
        problem.reset(case.x, case.out)
        calls.append(_calibrate(case, problem, gather, block_seconds))
    samples: list[list[float]] = [[] for _ in cases]
    wrong = [0] * len(cases)
    for repeat in range(repeats):
        progress(f"repeat {repeat + 1} of {repeats}")
        for i in _rotated(len(cases), repeat):
            seconds, errors = _turn(cases[i], problem, gather, calls[i])
            samples[i].append(seconds / calls[i] * 1e6)
            wrong[i] += errors
    totals = [int(sum(gather(float(n)))) for n in wrong]
    return [Timing(tuple(s), w) for s, w in zip(samples, totals, strict=True)]


def _rotated(n: int, by: int) -> Iterator[int]:
    return ((i + by) % n for i in range(n))


def _turn(case: Case, problem: Problem, gather: Gather, calls: int) -> tuple[float, int]:
    problem.reset(case.x, case.out)
    case.run()
    wrong = problem.wrong(case.out)
    if _accumulates(case, problem):
        problem.rest(case.x)
        return _block(case, gather, calls), wrong
    seconds = _block(case, gather, calls)
    # The block's last result is as wrong or right as the checked call's.
    return seconds, wrong + problem.wrong(case.out)


def _accumulates(case: Case, problem: Problem) -> bool:
    """Tell whether a call's result is the next call's input."""
    return case.in_place and problem.operation.reduces


def _block(case: Case, gather: Gather, calls: int) -> float:
    gather(0.0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        # The ranks leave the gathering microseconds apart, with cold caches after a check; a few
        # calls of the library itself line them up, so that the block holds calls alone.
        case.seconds(max(1, min(calls // 8, 64)))
        seconds = case.seconds(calls)
    finally:
        if collecting:
            gc.enable()
    return max(gather(seconds))


def _calibrate(case: Case, problem: Problem, gather: Gather, block_seconds: float) -> int:
    """Return how many calls fill a block; the same on all ranks, who all see the slowest time."""
    if _accumulates(case, problem):
        problem.rest(case.x)
    calls = 1
    while (seconds := _block(case, gather, calls)) < block_seconds:
        calls = max(calls + 1, min(10 * calls, int(1.2 * calls * block_seconds / (seconds + 1e-9))))
    return calls
