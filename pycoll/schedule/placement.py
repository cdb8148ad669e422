"""Placement: which ranks lie close together, level by level; nothing about how they are joined."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from pycoll.errors import UsageError


class Level(NamedTuple):
    """One way to split the ranks."""

    name: str  #: such as "socket", "node" or "rack"
    groups: tuple[int, ...]  #: number of every rank's group

    def members(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each group, ascending; groups in the order of their first ranks."""
        return _members(self.groups)


@lru_cache(maxsize=256)  # every rank asks the same
def _members(groups: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    found: dict[int, list[int]] = {}
    for rank, group in enumerate(groups):
        found.setdefault(group, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


@dataclass(frozen=True)
class Placement:
    """Levels that split the ranks, innermost first; none where all ranks are alike (flat)."""

    levels: tuple[Level, ...] = ()

    @classmethod
    def of(cls, *levels: Level) -> Placement:
        """Return the placement, without levels that split nothing."""
        sizes = {len(level.groups) for level in levels}
        if len(sizes) > 1:
            raise UsageError(f"levels are of {sorted(sizes)} ranks, want one number of ranks")
        split = []
        for level in levels:
            members = level.members()
            if 1 < len(members) < len(level.groups):
                # Equal splits must be equal Placements: number the groups in order of appearance.
                number = {rank: n for n, ranks in enumerate(members) for rank in ranks}
                split.append(Level(level.name, tuple(number[r] for r in sorted(number))))
        return cls(tuple(split))

    def __hash__(self) -> int:
        """Hash once: of many ranks it takes long, and caches ask again and again."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.levels)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that tell this placement from others; the same in every process."""
        return hashlib.blake2b(repr(self.levels).encode(), digest_size=8).hexdigest()

    @property
    def flat(self) -> bool:
        """Whether no level splits the ranks."""
        return not self.levels

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the levels, innermost first."""
        return tuple(level.name for level in self.levels)

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each group of the level called ``name``."""
        for level in self.levels:
            if level.name == name:
                return level.members()
        raise UsageError(f"level is {name!r}, want one of {', '.join(self.names) or 'no level'}")

    def among(self, ranks: Sequence[int]) -> Placement:
        """Return the placement as some of the ranks see it, numbered as they are listed."""
        return _among(self, tuple(ranks))

    def rotated(self, root: int) -> Placement:
        """Return the placement as the ranks see it that count from ``root`` on."""
        return Placement.of(
            *(Level(name, groups[root:] + groups[:root]) for name, groups in self.levels)
        )


@lru_cache(maxsize=256)  # every rank asks the same
def _among(placement: Placement, ranks: tuple[int, ...]) -> Placement:
    return Placement.of(
        *(Level(name, tuple(groups[r] for r in ranks)) for name, groups in placement.levels)
    )


FLAT = Placement()
