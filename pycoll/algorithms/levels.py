"""How the groups of one level share the work between them.

A *lane* is one rank of each group that talk to each other. There are as many as the largest group
has ranks; in a smaller group a rank belongs to several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pycoll.schedule import ScheduleBuilder


@dataclass(frozen=True)
class Split:
    """The groups of a level as one rank sees them."""

    groups: tuple[tuple[int, ...], ...]
    mine: tuple[int, ...]  #: this rank's group

    @cached_property
    def lanes(self) -> int:
        """Number of lanes."""
        return max(len(group) for group in self.groups)

    def lane(self, lane: int) -> tuple[int, ...]:
        """Return the ranks of a lane, one of each group, in the groups' order."""
        return tuple(self._in(group, lane) for group in self.groups)

    def owned(self, rank: int) -> list[int]:
        """Return the lanes that a rank belongs to."""
        return self._owned[rank]

    def blocks(self, group: tuple[int, ...], lane: int) -> list[int]:
        """Return the ranks of a group whose blocks travel in a lane: one, or none.

        A block travels in the first lane that its rank belongs to.
        """
        rank = self._in(group, lane)
        return [rank] if self._owned[rank][0] == lane else []

    def _in(self, group: tuple[int, ...], lane: int) -> int:
        return group[lane * len(group) // self.lanes]

    @cached_property
    def _owned(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for group in self.groups:
            for lane in range(self.lanes):
                found[self._in(group, lane)].append(lane)
        return found

    def passes(self) -> Iterator[list[list[int]]]:
        """Yield, for each round inside this group, the block of everyone's lanes that it moves.

        One block a round and rank: a message is then one range, wherever the ranks of a group are.
        """
        owned = [self._owned[rank] for rank in self.mine]
        for group in self.groups:
            for turn in range(max(map(len, owned))):
                yield [
                    self.blocks(group, lanes[turn]) if turn < len(lanes) else [] for lanes in owned
                ]


def split(b: ScheduleBuilder, level: str | None = None) -> Split | None:
    """Return the groups of a level (default: the innermost); None where no such level is."""
    levels = [found for found in b.placement.levels if level in (None, found.name)]
    if not levels:
        return None
    groups = levels[0].members()
    return Split(groups, next(group for group in groups if b.rank in group))
