"""Collective: what holds before and what must hold after, over (rank, chunk).

A value is told by the set of ranks whose contributions to its chunk it folds, each exactly
once. A rule returns that set, or None where a place holds nothing (before) or may hold
anything (after).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: (rank, chunk, size) -> the ranks whose contributions the place holds
Rule = Callable[[int, int, int], "frozenset[int] | None"]


@dataclass(frozen=True)
class Collective:
    """A promise to the caller; equality is identity of the rules."""

    name: str
    before: Rule  #: of the input
    after: Rule  #: of the output
    #: every rank ends with the same bits, so with equal expression trees
    same_bits: bool = False


def _own(rank: int, chunk: int, size: int) -> frozenset[int]:
    return frozenset((rank,))


def _everyone(rank: int, chunk: int, size: int) -> frozenset[int]:
    return frozenset(range(size))


allreduce = Collective("allreduce", before=_own, after=_everyone, same_bits=True)

COLLECTIVES: dict[str, Collective] = {c.name: c for c in (allreduce,)}
