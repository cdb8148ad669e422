"""Runs: ranks in a row on one host; what folds in the fixed order goes from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pycoll.schedule import Placement, ScheduleBuilder


@dataclass(frozen=True)
class Runs:
    """All ranks, cut wherever the next one is on another host, as one rank sees them."""

    every: tuple[tuple[int, ...], ...]
    number: int  #: which of them is this rank's

    @property
    def mine(self) -> tuple[int, ...]:
        """This rank's."""
        return self.every[self.number]

    @property
    def lanes(self) -> int:
        """How many ranks of each take a share: as many as the shortest has."""
        return min(map(len, self.every))

    def before(self, lane: int) -> tuple[int, ...]:
        """Return the rank that hands a lane's fold to this run; none to the first."""
        return () if self.number == 0 else (_in(self.every[self.number - 1], lane),)

    def behind(self, lane: int) -> tuple[int, ...]:
        """Return the rank that this run hands a lane's fold to; the last has none."""
        last = self.number == len(self.every) - 1
        return () if last else (_in(self.every[self.number + 1], lane),)

    def owner(self, lane: int) -> int:
        """Return the rank of this run that folds a lane."""
        return _in(self.mine, lane)

    def last(self, lane: int) -> int:
        """Return the rank that ends with the whole fold of a lane."""
        return _in(self.every[-1], lane)


def runs(b: ScheduleBuilder) -> Runs:
    """Return the runs of the nodes, or of the innermost level; each rank alone on a flat one."""
    every, number = _cut(b.placement, b.size)
    return Runs(every, number[b.rank])


def alone(b: ScheduleBuilder) -> Runs:
    """Return one run for each rank."""
    return Runs(tuple((rank,) for rank in range(b.size)), b.rank)


@lru_cache(maxsize=32)  # every rank asks the same
def _cut(placement: Placement, size: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    levels = [level for level in placement.levels if level.name == "node"] or placement.levels
    groups = levels[0].groups if levels else tuple(range(size))
    every: list[list[int]] = []
    for rank in range(size):
        if rank == 0 or groups[rank] != groups[rank - 1]:
            every.append([])
        every[-1].append(rank)
    number = tuple(n for n, run in enumerate(every) for _ in run)
    return tuple(map(tuple, every)), number


def _in(run: tuple[int, ...], lane: int) -> int:
    return run[lane % len(run)]
