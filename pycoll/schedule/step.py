"""Step: one thing that one rank does, in the order of the builder's calls."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pycoll.schedule.chunk import Buffer, Chunks


class Kind(enum.IntEnum):
    """What a step does."""

    SEND = 0  #: chunks go to peers[0]
    RECV = 1  #: chunks are overwritten by what peers[0] sends
    RECV_REDUCE = 2  #: chunks = fold in the order of peers; the rank itself is the present value
    COPY = 3  #: chunks = source
    REDUCE = 4  #: chunks = chunks op source


class Step(NamedTuple):
    """One builder call; immutable."""

    kind: Kind
    channel: int
    chunks: Chunks  #: SEND: read; else written
    peers: tuple[int, ...] = ()
    source: Chunks | None = None  #: COPY and REDUCE

    def reads(self) -> tuple[Chunks, ...]:
        """Return the places that the step reads."""
        if self.kind is Kind.SEND or self.kind is Kind.RECV_REDUCE:
            return (self.chunks,)
        if self.source is None:
            return ()
        return (self.source,) if self.kind is Kind.COPY else (self.chunks, self.source)

    def writes(self) -> tuple[Chunks, ...]:
        """Return the places that the step writes."""
        return () if self.kind is Kind.SEND else (self.chunks,)

    def senders(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that the step receives from."""
        if self.kind is Kind.RECV:
            return self.peers
        if self.kind is Kind.RECV_REDUCE:
            return tuple(p for p in self.peers if p != rank)
        return ()

    def __str__(self) -> str:
        word = self.kind.name.lower()
        if self.kind is Kind.SEND:
            return f"{word} {self.chunks} to {self.peers[0]}"
        if self.source is not None:
            return f"{word} {self.source} into {self.chunks}"
        return f"{word} {self.chunks} from {' '.join(map(str, self.peers))}"


def places(chunks: Chunks) -> range:
    """Return keys of the places: INPUT and OUTPUT share theirs, scratch counts down from -1."""
    if chunks.buffer is Buffer.SCRATCH:
        return range(-1 - chunks.place, -1 - chunks.place - chunks.nchunks, -1)
    return range(chunks.place, chunks.place + chunks.nchunks)
