"""How the groups of one level share the work between them.

A *lane* is one rank of each group that talk to each other. There are as many as the largest group
has ranks; in a smaller group a rank belongs to several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pycoll.schedule import Level, ScheduleBuilder


@dataclass(frozen=True)
class Split:
    """The groups of a level as one rank sees them."""

    groups: tuple[tuple[int, ...], ...]
    mine: tuple[int, ...]  #: this rank's group
    lanes: int  #: their number
    lanes_of: Mapping[int, list[int]]  #: of every rank

    def lane(self, lane: int) -> tuple[int, ...]:
        """Return the ranks of a lane, one of each group, in the groups' order."""
        return tuple(self._in(group, lane) for group in self.groups)

    def owned(self, rank: int) -> list[int]:
        """Return the lanes that a rank belongs to."""
        return self.lanes_of[rank]

    def blocks(self, group: tuple[int, ...], lane: int) -> list[int]:
        """Return the ranks of a group whose blocks travel in a lane: one, or none.

        A block travels in the first lane that its rank belongs to.
        """
        rank = self._in(group, lane)
        return [rank] if self.lanes_of[rank][0] == lane else []

    def _in(self, group: tuple[int, ...], lane: int) -> int:
        return group[lane * len(group) // self.lanes]

    def passes(self) -> Iterator[list[list[int]]]:
        """Yield, for each round inside this group, the block of everyone's lanes that it moves.

        One block a round and rank: a message is then one range, wherever the ranks of a group are.
        The own group comes first, so that all groups do the same up to their places.
        """
        owned = [self.lanes_of[rank] for rank in self.mine]
        own = self.groups.index(self.mine)
        for group in self.groups[own:] + self.groups[:own]:
            for turn in range(max(map(len, owned))):
                yield [
                    self.blocks(group, lanes[turn]) if turn < len(lanes) else [] for lanes in owned
                ]


def split(b: ScheduleBuilder, level: str | None = None) -> Split | None:
    """Return the groups of a level (default: the innermost); None where no such level is."""
    levels = [found for found in b.placement.levels if level in (None, found.name)]
    if not levels:
        return None
    groups, group_of, lanes, lanes_of = _lanes(levels[0])
    return Split(groups, groups[group_of[b.rank]], lanes, lanes_of)


@lru_cache(maxsize=32)  # every rank asks the same
def _lanes(
    level: Level,
) -> tuple[tuple[tuple[int, ...], ...], Mapping[int, int], int, Mapping[int, list[int]]]:
    """Return a level's groups, which one each rank is in, the number of lanes, and each rank's."""
    groups = level.members()
    group_of = {rank: i for i, group in enumerate(groups) for rank in group}
    lanes = max(map(len, groups))
    lanes_of: dict[int, list[int]] = defaultdict(list)
    for group in groups:
        for lane in range(lanes):
            lanes_of[group[lane * len(group) // lanes]].append(lane)
    return groups, group_of, lanes, lanes_of
