"""Sync: every move gets the waits before it and the signals behind it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pycoll.passes.moves import Move, Where
from pycoll.schedule.order import Access, cross_channel


class CountKind(enum.IntEnum):
    """What a count orders; numbered as ``isa.EdgeKind``."""

    DATA = 0
    LOCAL = 1
    DONE = 2


class End(NamedTuple):
    """One end of an edge."""

    kind: CountKind
    sending: bool
    peer: int
    channel: int
    other: int = 0


class Wait(NamedTuple):
    """Until a slot is free (sending) or a message or signal is there."""

    end: End


class Signal(NamedTuple):
    """A slot is filled (sending) or consumed."""

    end: End


Item = Move | Wait | Signal


def sync(moves: Sequence[Move], rank: int, in_place: bool) -> dict[int, list[Item]]:
    """Return every channel's items in order; ``in_place``: IN and OUT may be one memory."""
    single = len({move.channel for move in moves}) < 2
    after = [()] * len(moves) if single else cross_channel([_access(m, in_place) for m in moves])
    awaited: dict[int, list[int]] = {}  # move -> channels that wait for it
    for i, earlier in enumerate(after):
        for j in earlier:
            awaited.setdefault(j, []).append(moves[i].channel)
    channels: dict[int, list[Item]] = {}
    for i, move in enumerate(moves):
        c = move.channel
        stream = channels.setdefault(c, [])
        for j in after[i]:
            stream.append(Wait(End(CountKind.LOCAL, False, rank, moves[j].channel, c)))
        filled = [
            End(CountKind.DATA, True, d.peer, c) for d in move.destinations if d.where is Where.SLOT
        ]
        emptied = [
            End(CountKind.DATA, False, s.peer, c) for s in move.sources if s.where is Where.SLOT
        ]
        # Credit first: it is nearly always there already, and data is worth waiting for last.
        stream += [Wait(end) for end in filled + emptied]
        stream.append(move)
        # The peer that waits for data is on the critical path, the one that waits for credit not.
        stream += [Signal(end) for end in filled + emptied]
        for other in awaited.get(i, ()):
            stream.append(Signal(End(CountKind.LOCAL, True, rank, c, other)))
    return channels


def _access(move: Move, in_place: bool) -> Access:
    return Access(
        move.channel,
        [k for s in move.sources if in_place or s.where is not Where.IN for k in s.memory()],
        [k for d in move.destinations for k in d.memory()],
    )


def release(touches: Iterable[int], touched_by: Iterable[int]) -> list[Item]:
    """Return what a rank does at the end of a direct form: say DONE, and hear it.

    Args:
        touches: The ranks whose memory it reads or writes.
        touched_by: Those that read or write its own.
    """
    tail: list[Item] = [Signal(End(CountKind.DONE, True, peer, 0)) for peer in sorted(touches)]
    tail += [Wait(End(CountKind.DONE, False, peer, 0)) for peer in sorted(touched_by)]
    return tail
