"""Clock: how a rank's CLOCK_MONOTONIC stands to that of the rank that carries the control plane.

A question goes there and comes back with the time there: it was that at some moment in between, so
half of the round trip bounds the error, whichever way took longer. The best of a few counts.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pycoll.bootstrap.framing import Frame, FrameType
from pycoll.errors import BootstrapError

#: Rounds of an alignment.
ROUNDS = 16
#: By how much two clocks may drift apart, per second: more than crystals do.
DRIFT = 1e-4
_ASKED, _TOLD = struct.Struct("<Q"), struct.Struct("<QQ")


class Aligned(NamedTuple):
    """How this process's CLOCK_MONOTONIC stands to another's."""

    reference: int  #: rank of the job by whose clock
    offset_ns: int  #: what to add to a time here
    error_ns: int  #: by how much that may be wrong


class AlignedClock:
    """What a process knows of that.

    Args:
        rank: Of the job.
        post: Sends a frame to whoever carries the control plane.
    """

    def __init__(self, rank: int, post: Callable[[Frame], None]) -> None:
        self._rank, self._post = rank, post
        self._best: tuple[int, Aligned] | None = None  #: and when, here, it was true
        self._heard = threading.Event()

    def align(self, seconds: float) -> Aligned | None:
        """Ask again for at most so long; None: nobody has ever answered."""
        until = time.monotonic() + seconds
        self._best = self._grown()
        for _ in range(ROUNDS):
            self._heard.clear()
            self._post(Frame(FrameType.TIME, self._rank, body=_ASKED.pack(time.monotonic_ns())))
            if not self._heard.wait(max(0.0, until - time.monotonic())):
                break
        self._best = self._grown()
        return self._best[1] if self._best else None

    def hear(self, frame: Frame) -> None:
        """Take an answer."""
        now = time.monotonic_ns()
        if len(frame.body) != _TOLD.size:
            raise BootstrapError(f"TIME has {len(frame.body)} bytes, want {_TOLD.size}")
        asked, there = _TOLD.unpack(frame.body)
        if asked > now:
            raise BootstrapError("TIME answers a question that was not asked yet")
        found = Aligned(frame.rank, there - (asked + now) // 2, (now - asked) // 2 + 1)
        if frame.rank == self._rank:
            found = Aligned(frame.rank, 0, 0)
        best = self._best
        if best is None or best[1].reference != frame.rank or found.error_ns < best[1].error_ns:
            self._best = asked, found  # the time there may be as old as the question
        self._heard.set()

    def _grown(self) -> tuple[int, Aligned] | None:
        """Return the best answer, with the error that it has by now."""
        if self._best is None or self._best[1].reference == self._rank:
            return self._best
        then, found = self._best
        now = time.monotonic_ns()
        return now, found._replace(error_ns=found.error_ns + int((now - then) * DRIFT))


def answer(frame: Frame, rank: int) -> Frame:
    """Return what whoever carries the control plane says to a question."""
    if len(frame.body) != _ASKED.size:
        raise BootstrapError(f"rank {frame.rank} sent TIME with {len(frame.body)} bytes, want 8")
    return frame._replace(rank=rank, body=frame.body + _ASKED.pack(time.monotonic_ns()))
