"""Slots: every step becomes moves; a message lies in the next slot of its edge."""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.passes.fold import Folder
from pycoll.passes.moves import Move, Where, local, remote
from pycoll.schedule import Chunks, Kind, Step


def slots(
    steps: Sequence[Step], rank: int, completes: frozenset[int], folder: Folder
) -> list[Move]:
    """Return the moves of one rank's steps; ``completes`` are those that end an average."""
    moves: list[Move] = []
    for i, (kind, channel, chunks, peers, source) in enumerate(steps):
        here = local(chunks)
        if kind is Kind.SEND:
            moves.append(Move(channel, (here,), (remote(Where.SLOT, peers[0], chunks),)))
        elif kind is Kind.RECV:
            moves.append(Move(channel, (remote(Where.SLOT, peers[0], chunks),), (here,)))
        elif kind is Kind.RECV_REDUCE:
            order = tuple(here if p == rank else remote(Where.SLOT, p, chunks) for p in peers)
            moves += folder.fold(channel, order, here, i in completes)
        else:
            moves += local_step(kind, channel, chunks, source, i in completes)
    return moves


def local_step(
    kind: Kind, channel: int, chunks: Chunks, source: Chunks | None, scale: bool
) -> list[Move]:
    """Return the move of a COPY or REDUCE within this rank."""
    assert source is not None
    here = local(chunks)
    operands = (local(source),) if kind is Kind.COPY else (here, local(source))
    return [Move(channel, operands, (here,), scale)]
