"""What passes turn a schedule into: moves, each of which becomes one REDUCE_COPY.

Local order is the list's order. A SLOT names the peer only: the edge is (peer, channel of the
move), incoming as a source and outgoing as a destination, always the next slot in order.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pycoll.schedule import Chunks


class Where(enum.IntEnum):
    """Where a place lies; numbered as ``isa.Space``, into which lowering translates it."""

    IN = 0
    OUT = 1
    SCRATCH = 2
    SLOT = 3
    PEER_IN = 4
    PEER_OUT = 5


class Location(NamedTuple):
    """A range of chunks somewhere."""

    where: Where
    peer: int  #: of SLOT and PEER_*; else 0
    place: int  #: 0 for a SLOT
    chunk: int
    nchunks: int

    def memory(self) -> range:
        """Keys of this rank's memory: IN and OUT share theirs; a slot has none."""
        if self.where in (Where.IN, Where.OUT):
            return range(self.place, self.place + self.nchunks)
        if self.where is Where.SCRATCH:
            return range(-1 - self.place, -1 - self.place - self.nchunks, -1)
        return range(0)


class Move(NamedTuple):
    """Every destination = fold of the sources in order."""

    channel: int
    sources: tuple[Location, ...]
    destinations: tuple[Location, ...]
    scale: bool = False  #: the value first holds all contributions here: an average divides


class Limits(NamedTuple):
    """What one REDUCE_COPY of the target can hold."""

    sources: int
    destinations: int


def local(chunks: Chunks) -> Location:
    """Return the place of this rank's own chunks."""
    where = (Where.IN, Where.OUT, Where.SCRATCH)[chunks.buffer]
    return Location(where, 0, chunks.place, chunks.chunk, chunks.nchunks)


def remote(where: Where, peer: int, chunks: Chunks) -> Location:
    """Return ``peer``'s own place of ``chunks``, or the slot to or from it for a message."""
    place = 0 if where is Where.SLOT else chunks.place
    return Location(where, peer, place, chunks.chunk, chunks.nchunks)


def uniform(move: Move) -> Move:
    """Return the move with one chunk range for all its operands, as a REDUCE_COPY has one.

    Right only where all blocks are equally long, so that any range says the same.
    """
    chunk = move.sources[0].chunk
    return move._replace(
        sources=tuple(p._replace(chunk=chunk) for p in move.sources),
        destinations=tuple(p._replace(chunk=chunk) for p in move.destinations),
    )


def outgoing(place: Location) -> bool:
    """Tell whether a destination leaves this rank."""
    return place.where is Where.SLOT or place.where is Where.PEER_OUT
