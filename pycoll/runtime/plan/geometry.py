"""Geometry: which blocks of a message lie in this rank's arrays.

A message is a row of blocks: one, or one for each rank. An algorithm is written for root 0; with
another root, ranks and blocks are counted from there. Here they are real again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pycoll.schedule import Collective


class Extent(NamedTuple):
    """Neighbouring blocks: what an array holds. Its first element begins the first of them."""

    first: int
    nblocks: int

    def total(self, table: tuple[int, ...]) -> int:
        """Return the sum of a table over the blocks."""
        return sum(table[self.first : self.first + self.nblocks])

    def begin(self, table: tuple[int, ...]) -> int:
        """Return the sum of a table over all blocks before."""
        return sum(table[: self.first])


class Geometry(NamedTuple):
    """Where a rank's arrays stand in the message."""

    nblocks: int  #: of the message
    input: Extent
    output: Extent


@lru_cache(maxsize=1024)
def geometry(collective: Collective, rank: int, size: int, root: int = 0) -> Geometry:
    """Return the extents of a rank's arrays in real blocks."""
    nblocks, virtual = collective.nblocks(size), (rank - root) % size

    def real(blocks: range) -> Extent:
        # An extent is nothing, one block or all of them: none wraps.
        first = (blocks.start + root) % nblocks if 0 < len(blocks) < nblocks else 0
        return Extent(first, len(blocks))

    x, out = collective.in_blocks(virtual, size), collective.out_blocks(virtual, size)
    return Geometry(nblocks, real(x), real(out))
