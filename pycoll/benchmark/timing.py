"""The timing rules of the benchmark; knows no library.

Libraries alternate: in each repeat every one of them has one turn, and the order rotates. A turn
resets the arrays, makes one call whose result is checked at every element, then times a block of
back-to-back calls, long enough to be told from the clock's noise. The time of a repeat is that of
the slowest rank, and all ranks begin together.

Percentiles are over calls, each timed by itself, and a call's time too is that of its slowest
rank. Reading the clock takes some 50 ns: where that is little beside a call, the calls of the block
itself are timed; where it is not, those of a second block behind it, whose sum counts for nothing
else.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pycoll.benchmark.oob import Gather
from pycoll.benchmark.problem import Array, Problem

BLOCK_SECONDS = 0.002
#: From so many seconds a call is timed by itself within its block: the clock takes 0.3 % of it.
LONG = 20e-6
METHOD = (
    "libraries alternate within one run; per repeat one block of back-to-back calls each, in "
    f"rotated order, at least {BLOCK_SECONDS * 1e3:g} ms long, times the ranks that share a core; "
    "calls that no rank has to wait for overlap, and ranks meet behind their warm-up; "
    "the time of a repeat is the slowest rank's; min and median are over the repeats; p50, p99 and "
    "max are over single calls, each as long as on its slowest rank and with the clock's own some "
    f"50 ns, those of the blocks where a call takes {LONG * 1e6:g} us or more, else as many calls "
    "behind each block; garbage collector off in blocks; every element checked on random data, "
    "outputs poisoned"
)


def back_to_back(run: Callable[[], object], calls: int) -> float:
    """Return how many seconds ``calls`` calls take, one behind the other."""
    turns = itertools.repeat(None, calls)
    start = time.perf_counter()
    for _ in turns:
        run()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Case:
    """One library's call on given arrays."""

    library: str
    algorithm: str
    transport: str
    arrays: str  #: "numpy" or "empty" (from ``comm.empty``)
    call: str  #: "call", "plan" or "async"
    x: Array
    out: Array
    run: Callable[[], object]
    block: Callable[[int], float] | None = None  #: times a block by itself (native code)
    #: Begins a call and returns what waits for it, where the call is one that does not block.
    begin: Callable[[], Callable[[], object]] | None = None
    in_place: bool = False  #: ``x`` and ``out`` are one memory, or one is a part of the other

    def seconds(self, calls: int) -> float:
        """Return how long ``calls`` calls took, one behind the other."""
        return back_to_back(self.run, calls) if self.block is None else self.block(calls)

    def each(self, calls: int) -> Array:
        """Return how many seconds each of ``calls`` calls took, one behind the other."""
        run, clock = self.run, time.perf_counter
        ticks = [0.0] * (calls + 1)
        ticks[0] = clock()
        for i in range(1, calls + 1):
            run()
            ticks[i] = clock()
        return np.diff(ticks)


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call, and the wrong elements of all checks."""

    samples: tuple[float, ...]  #: of the repeats: a block's time over its calls
    wrong: int
    #: Of single calls; none where the block is timed by native code.
    calls: Array = field(default_factory=lambda: np.empty(0))

    @property
    def low(self) -> float:
        """The fastest repeat."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """The median repeat."""
        return statistics.median(self.samples)

    def percentile(self, percent: float) -> float | None:
        """Return a percentile over the single calls, by nearest rank.

        None if there are too few of them for one to be above it: of 99 calls there is no p99.
        """
        if self.calls.size * (100 - percent) < 100:
            return None
        at = -int(-self.calls.size * percent // 100) - 1
        return float(np.partition(self.calls, at)[at])

    @property
    def slowest(self) -> float | None:
        """The slowest of the single calls; None if there are none."""
        return float(self.calls.max()) if self.calls.size else None


@dataclass(frozen=True)
class Rules:
    """How often things are called; the same on all ranks."""

    repeats: int = 7  #: turns of each library
    calls: int | None = None  #: of a block; by default as many as fill `block_seconds`
    warmup: int | None = None  #: calls before a block; by default an eighth of it, 1 to 64
    block_seconds: float = BLOCK_SECONDS


def measure(
    cases: Sequence[Case],
    problem: Problem,
    gather: Gather,
    rules: Rules,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Timing]:
    """Time the cases against each other; all ranks must pass equal cases in equal order."""
    blocks = []
    for case in cases:
        progress(f"{case.library}: warming up")
        problem.reset(case.x, case.out)
        blocks.append(_calibrate(case, problem, gather, rules))
    samples: list[list[float]] = [[] for _ in cases]
    singles: list[list[Array]] = [[] for _ in cases]
    wrong = [0] * len(cases)
    for repeat in range(rules.repeats):
        for i in rotated(range(len(cases)), repeat):
            progress(f"repeat {repeat + 1} of {rules.repeats}, {cases[i].library}")
            seconds, each, errors = _turn(cases[i], problem, gather, blocks[i])
            samples[i].append(seconds / blocks[i].calls * 1e6)
            singles[i].append(each * 1e6)
            wrong[i] += errors
    totals = [int(sum(gather(float(n)))) for n in wrong]
    return [
        Timing(tuple(s), w, np.concatenate(each))
        for s, w, each in zip(samples, totals, singles, strict=True)
    ]


@dataclass(frozen=True)
class _Block:
    """How the calls of one case are timed."""

    calls: int
    warmup: int
    long: bool  #: a call takes so long that the clock may be read behind each
    rooted: bool


def rotated(turns: Sequence[Any], by: int) -> list[Any]:
    """Return those that take turns, in the order of the turn numbered ``by``."""
    first = by % max(1, len(turns))
    return [*turns[first:], *turns[:first]]


def _turn(case: Case, problem: Problem, gather: Gather, block: _Block) -> tuple[float, Array, int]:
    wrong = problem.check(case.run, case.x, case.out, gather)
    if accumulates(case, problem):
        problem.rest(case.x)
    seconds, each = _timed(case, gather, block)
    if not accumulates(case, problem):
        # The block's last result is as wrong or right as the checked call's.
        wrong += problem.wrong(case.out)
    return seconds, each, wrong


def accumulates(case: Case, problem: Problem) -> bool:
    """Tell whether a call's result is the next call's input."""
    return case.in_place and problem.operation.reduces


def _timed(case: Case, gather: Gather, block: _Block) -> tuple[float, Array]:
    """Return the seconds of a block and those of single calls, of the slowest ranks."""
    if case.block is None and block.long:
        each = _together(lambda: case.each(block.calls), case, gather, block)
        return float(max(gather(float(each.sum())))), np.max(gather(each), axis=0)
    slowest = _slowest(case, gather, block)
    if case.block is not None:
        return slowest, np.empty(0)
    each = _together(lambda: case.each(block.calls), case, gather, block)
    return slowest, np.max(gather(each), axis=0)


def _slowest(case: Case, gather: Gather, block: _Block) -> float:
    """Return the seconds of a block on the rank that took longest."""
    seconds = _together(lambda: case.seconds(block.calls), case, gather, block)
    return float(max(gather(seconds)))


def _together(timed: Callable[[], Any], case: Case, gather: Gather, block: _Block) -> Any:
    """Time something when all ranks are there."""
    gather(0.0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        line_up(case.seconds, block.warmup, gather, rooted=block.rooted)
        return timed()
    finally:
        if collecting:
            gc.enable()


def line_up(run: Callable[[int], object], calls: int, gather: Gather, *, rooted: bool) -> None:
    """Make the calls before those that are timed, so that all ranks then begin together.

    The ranks leave a gathering microseconds apart, with cold caches; a few calls of the library
    itself line them up. Those with a root do not: a rank that only sends may be through them, and
    through half of what is timed, before the root begins to time what has come (4 hosts, over TCP:
    64 gathers of 16 KiB took 31 us a call from the first to the last, but 15 on the slowest rank).
    So then the ranks meet once more.
    """
    if calls:
        run(calls)
        if rooted:
            gather(0.0)


def _calibrate(case: Case, problem: Problem, gather: Gather, rules: Rules) -> _Block:
    """Return how a case is timed; the same on all ranks, who all see the slowest time."""
    if accumulates(case, problem):
        problem.rest(case.x)
    calls = 1 if rules.calls is None else rules.calls
    while True:
        warmup = max(1, min(calls // 8, 64)) if rules.warmup is None else rules.warmup
        block = _Block(calls, warmup, long=False, rooted=problem.operation.rooted)
        slowest = _slowest(case, gather, block)
        if rules.calls is None and slowest >= rules.block_seconds:
            # Once may be an accident: one call that something else ran in would be a whole block.
            slowest = min(slowest, _slowest(case, gather, block))
        if rules.calls is not None or slowest >= rules.block_seconds:
            return replace(block, long=slowest / calls >= LONG)
        wanted = int(1.2 * calls * rules.block_seconds / (slowest + 1e-9))
        calls = max(calls + 1, min(10 * calls, wanted))
