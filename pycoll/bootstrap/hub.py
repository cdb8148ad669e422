"""Hub: what rank 0 does with the frames of all ranks, as pure logic without sockets or clocks."""

from __future__ import annotations

import math
import struct

from pycoll.bootstrap.framing import Frame, Kind, pack_blobs
from pycoll.errors import BootstrapError

SECONDS = struct.Struct("<d")
CALLS = struct.Struct("<Q")

#: A frame and the rank that it goes to.
Outgoing = tuple[int, Frame]


def rank_list(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 1, 2, 5", at most eight of them."""
    shown = ", ".join(str(rank) for rank in ranks[:8])
    rest = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"


class _Gathering:
    """An exchange that not every rank has come to."""

    def __init__(self, deadline: float, seconds: float) -> None:
        self.deadline = deadline
        self.seconds = seconds
        self.blobs: dict[int, bytes] = {}


class Hub:
    """Completes exchanges and tells every rank what became of the others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._gatherings: dict[str, _Gathering] = {}
        self._failed: dict[str, str] = {}
        self._gone: set[int] = set()

    def receive(self, rank: int, frame: Frame, now: float) -> list[Outgoing]:
        """Take a frame that came from `rank`.

        Raises:
            BootstrapError: A rank of this protocol version does not send such a frame.
        """
        if frame.rank != rank:
            raise BootstrapError(f"rank {rank} sent a frame of rank {frame.rank}")
        if frame.kind is Kind.CONTRIBUTE:
            return self._contribute(rank, frame, now)
        if frame.kind is Kind.ABORT:
            return self._others(rank, frame)
        if frame.kind is Kind.CLOSED:
            if len(frame.body) != CALLS.size:
                raise BootstrapError(
                    f"rank {rank} sent CLOSED with {len(frame.body)} bytes, want 8"
                )
            return self._leave(rank, frame)
        raise BootstrapError(f"rank {rank} sent {frame.kind.name}, which only rank 0 sends")

    def lost(self, rank: int, reason: str) -> list[Outgoing]:
        """Note that `rank` is gone; nothing is said twice, nor after a clean close."""
        return self._leave(rank, Frame(Kind.LOST, rank, reason))

    def expire(self, now: float) -> list[Outgoing]:
        """Fail the exchanges whose deadline has passed."""
        out: list[Outgoing] = []
        for key, gathering in list(self._gatherings.items()):
            if gathering.deadline <= now:
                del self._gatherings[key]
                absent = [rank for rank in range(self._size) if rank not in gathering.blobs]
                text = f"{rank_list(absent)} did not come within {gathering.seconds:g} s"
                self._failed[key] = text
                frame = Frame(Kind.MISSING, 0, key, text.encode())
                out += [(rank, frame) for rank in gathering.blobs]
        return out

    def next_deadline(self) -> float:
        """Return when `expire` has work next; infinity if nothing is pending."""
        return min((g.deadline for g in self._gatherings.values()), default=math.inf)

    def _contribute(self, rank: int, frame: Frame, now: float) -> list[Outgoing]:
        key = frame.key
        if len(frame.body) < SECONDS.size:
            raise BootstrapError(f"rank {rank} sent a contribution of {len(frame.body)} bytes")
        (seconds,) = SECONDS.unpack_from(frame.body)
        if not 0 <= seconds <= 86400:
            raise BootstrapError(f"rank {rank} sent a timeout of {seconds} s")
        if key in self._failed:  # too late: the others have given up
            return [(rank, Frame(Kind.MISSING, 0, key, self._failed[key].encode()))]
        gathering = self._gatherings.setdefault(key, _Gathering(now + seconds, seconds))
        # A rank that gave up on a slow rank 0 and tries again replaces what it said before.
        gathering.blobs[rank] = frame.body[SECONDS.size :]
        if now + seconds < gathering.deadline:
            gathering.deadline, gathering.seconds = now + seconds, seconds
        if len(gathering.blobs) < self._size:
            return []
        del self._gatherings[key]
        everything = pack_blobs([gathering.blobs[rank] for rank in range(self._size)])
        complete = Frame(Kind.GATHERED, 0, key, everything)
        return [(rank, complete) for rank in range(self._size)]

    def _leave(self, rank: int, frame: Frame) -> list[Outgoing]:
        if rank in self._gone:
            return []
        self._gone.add(rank)
        return self._others(rank, frame)

    def _others(self, rank: int, frame: Frame) -> list[Outgoing]:
        return [(r, frame) for r in range(self._size) if r != rank and r not in self._gone]
