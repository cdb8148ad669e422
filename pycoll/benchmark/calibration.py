"""The order of measurements within a budget of seconds; knows no communicator.

Sizes come coarse to fine, and the algorithms of one collective and size one behind the other, so
that what the machine does that second hits all of them. An algorithm that is far behind at a size
is not measured there again. Sweeps over all that is left repeat until the budget is spent, and the
median over the sweeps counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pycoll.benchmark.timing import rotated

BEHIND = 3.0  #: times the best: not measured again
#: The same of the model's word, before anything was measured. The model may be off.
HOPELESS = 10.0
#: Calls of a rooted collective follow each other without waiting for the last rank, so their time
#: is that of the busiest rank; that an algorithm also ends soon is the model's word.
HOPELESS_ROOTED = 1.5
ENOUGH = 21  #: samples of a cell
SHARE = 0.002  #: of the budget that one sample may take
#: The same of the second sample of what is far behind by its first one, which something else may
#: have hit: without it that one would rule the cell, and by it the sizes between.
SECOND_SHARE = 0.05
COLD = 30.0  #: times what a later call takes, the first one does not take
#: A sample has as many calls where these fit its share, though fewer would fill a block: the ranks
#: begin apart, which a single call would be charged with.
CALLS = 5
BLOCK_SECONDS = 0.001  #: of back-to-back calls, where each rank has a core


class Cell(NamedTuple):
    """What is measured."""

    collective: str
    nbytes: int
    algorithm: str


class Timed(NamedTuple):
    """What all ranks know of one block of calls."""

    seconds: float  #: of the slowest rank
    elapsed: float  #: of the budget, as rank 0 sees it


class Calibration:
    """Chooses what is timed next, on all ranks alike: from what all of them know."""

    def __init__(
        self,
        algorithms: Mapping[str, Sequence[str]],
        sizes: Mapping[str, Sequence[int]],
        guess: Callable[[Cell], float | None],
        timed: Callable[[Cell, int], Timed],
        budget: float,
        *,
        rooted: frozenset[str] = frozenset(),
        block_seconds: float = BLOCK_SECONDS,
    ) -> None:
        """Prepare.

        Args:
            algorithms: Per collective, the candidates.
            sizes: Per collective, bytes of the messages, ascending.
            guess: The model's seconds; None where the algorithm cannot run.
            timed: Runs so many calls of a cell, one behind the other.
            budget: Seconds.
            rooted: Collectives with a root.
            block_seconds: How long one sample's calls take at least.
        """
        self._algorithms = algorithms
        self._sizes = sizes
        self._guess = guess
        self._timed = timed
        self._budget = budget
        self._rooted = rooted
        self._block = block_seconds
        self._elapsed = 0.0
        self._off = 1.0  # the last measured time over the model's
        self.samples: dict[Cell, list[float]] = {}
        self._dropped: set[Cell] = set()

    def run(self) -> dict[Cell, float]:
        """Measure until the budget is spent or every cell has enough samples; return medians."""
        sweep = 0
        while self._sweep(sweep) and self._elapsed < self._budget:
            sweep += 1
        return {cell: statistics.median_low(found) for cell, found in self.samples.items()}

    def _sweep(self, sweep: int) -> bool:
        measured = False
        for collective, nbytes in self._groups():
            names = self._algorithms[collective]
            cells = [Cell(collective, nbytes, name) for name in names]
            if sweep == 0:
                self._drop_hopeless(cells)
            for cell in rotated(cells, sweep):
                if cell not in self._dropped and len(self.samples.get(cell, ())) < ENOUGH:
                    measured |= self._measure(cell)
            self._drop_behind(cells)
        return measured

    def _groups(self) -> Iterator[tuple[str, int]]:
        """Yield collectives and sizes, coarse to fine: both ends, the middle, the quarters, ..."""
        orders = {
            name: [sizes[i] for i in halving(len(sizes))] for name, sizes in self._sizes.items()
        }
        for i in range(max(map(len, orders.values()), default=0)):
            for collective, order in orders.items():
                if i < len(order):
                    yield collective, order[i]

    def _drop_hopeless(self, cells: Sequence[Cell]) -> None:
        guesses = {cell: self._guess(cell) for cell in cells}
        known = [seconds for seconds in guesses.values() if seconds is not None]
        for cell, seconds in guesses.items():
            limit = HOPELESS_ROOTED if cell.collective in self._rooted else HOPELESS
            if seconds is None or seconds > limit * min(known) or self._behind_around(cell):
                self._dropped.add(cell)

    def _behind_around(self, cell: Cell) -> bool:
        """Tell whether the algorithm fell behind at the next smaller and larger measured sizes."""
        dropped = {
            c.nbytes: c in self._dropped
            for c in self.samples
            if (c.collective, c.algorithm) == (cell.collective, cell.algorithm)
        }
        below = [n for n in dropped if n < cell.nbytes]
        above = [n for n in dropped if n > cell.nbytes]
        return bool(below and above and dropped[max(below)] and dropped[min(above)])

    def _drop_behind(self, cells: Sequence[Cell]) -> None:
        found = {c: statistics.median_low(self.samples[c]) for c in cells if c in self.samples}
        for cell in found:
            # One sample may have been hit by something else, so it takes two to drop a cell.
            while min(self.samples[cell]) > BEHIND * min(found.values()):
                if len(self.samples[cell]) > 1 or not self._measure(cell, SECOND_SHARE):
                    self._dropped.add(cell)
                    break

    def _measure(self, cell: Cell, share: float = SHARE) -> bool:
        """Take one sample if it fits the budget, and this share of it."""
        before = self.samples.get(cell)
        expected = min(before) if before else (self._guess(cell) or 0.0) * self._off
        left = self._budget - self._elapsed
        if expected > min(left, max(share * self._budget, self._block)):
            return False
        if before is None:
            # The first call meets cold caches: no sample, but it bounds what the next ones take.
            # It may have made connections as well, which says nothing of them.
            first = self._time(cell, 1)
            if first > COLD * expected:
                first = self._time(cell, 1)
            expected = max(first / COLD, min(first, expected))
        expected = max(expected, 1e-9)
        several = min(CALLS, int(SHARE * self._budget / expected))
        seconds = self._time(cell, max(1, several, round(self._block / expected)))
        self.samples.setdefault(cell, []).append(seconds)
        guess = self._guess(cell)
        self._off = seconds / guess if guess else 1.0
        return True

    def _time(self, cell: Cell, calls: int) -> float:
        done = self._timed(cell, calls)
        self._elapsed = done.elapsed
        return done.seconds / calls


def halving(n: int) -> list[int]:
    """Return 0 .. n - 1 so that any first part of them is spread evenly: the ends come first."""
    order, step = [0, n - 1][: 2 * n], n - 1
    while step > 1:
        step = -(-step // 2)
        order += range(0, n, step)
    return list(dict.fromkeys([*order, *range(n)]))
