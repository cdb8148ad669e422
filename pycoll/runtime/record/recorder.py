"""Recorder: what is told of one communicator, and all of them in one record.

A record is what `pycoll trace` reads, docs/trace.md describes it. Any thread may make one, of
communicators that others use and close meanwhile.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from pycoll.runtime.native import bindings, load, trace, verbs
from pycoll.runtime.record import events, places
from pycoll.runtime.record.kinds import by_call
from pycoll.runtime.record.stats import Stats
from pycoll.runtime.record.ticks import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycoll.bootstrap import Bootstrap
    from pycoll.runtime.join import World

FORMAT = "pycoll-record-1"
#: How long a record waits for that rank, unless it must be there soon.
ALIGN_SECONDS = 1.0

_live: dict[int, Recorder] = {}
#: Held while communicators are read, and by whoever takes one away.
_reading = threading.RLock()
_reader = 0  #: the thread that reads


class Recorder:
    """What is told of one communicator.

    Args:
        comm: The native communicator.
        bootstrap: Its ranks.
        world: What they agree on.
        device: Where its calls run: "cpu", or such as "cuda:0".
        times: As `Side.times`.
        refused: Says what a refused call of this rank was, by its number.
    """

    def __init__(
        self,
        comm: Any,
        bootstrap: Bootstrap,
        world: World,
        device: str,
        times: Callable[[], dict[int, tuple[int, int | None]] | None],
        refused: Callable[[int], str],
    ) -> None:
        self._comm, self._bootstrap, self._world = comm, bootstrap, world
        self._device, self._times, self._refused = device, times, refused
        remote = world.remote and not all(world.mapped)
        self._rails = world.rails or ((world.transport,) if remote else ())
        about = f"{bootstrap.label}\t{world.rank}\t{world.size}\t{device}\t{','.join(self._rails)}"
        trace.say_about(comm, f"{os.getpid()}\t{self.job}\t{about}")
        _live[id(self)] = self

    @property
    def job(self) -> str:
        """Return what tells this job from others, alike on all its ranks."""
        return self._bootstrap.job_id

    @property
    def bootstrap(self) -> Bootstrap:
        """Return the ranks."""
        return self._bootstrap

    def close(self) -> None:
        """Read nothing of it any more; not while this thread reads, see `current`."""
        with _reading:
            _live.pop(id(self), None)

    def current(self) -> bool:
        """Tell whether the calling thread is amid reading."""
        return _reader == threading.get_ident()

    def stats(self) -> Stats:
        """Return what it has counted."""
        totals = trace.trace_totals(trace.comm_trace(self._comm))
        net = verbs.comm_net_state(self._comm)
        return Stats(
            calls=bindings.status_read(self._comm, self._world.rank).sequence,
            collectives=by_call(totals),
            waits=totals.waits,
            waited_seconds=totals.waited_ns / 1e9,
            rails=self._rails,
            sent=net.bytes[: len(self._rails)],
            connections=net.connections,
            connections_up=net.live,
            failures=net.failures,
            revivals=net.revivals,
            replayed=net.replayed,
            work_requests=net.requests,
        )

    def told(self, clock: Clock) -> dict[str, Any]:
        """Return its part of a record."""
        world, control = self._world, self._bootstrap.control
        numbers: dict[str, int] = {}  # by name: containers of one machine have several
        ring = trace.comm_trace(self._comm)
        found = events.read(ring, clock, self._refused, len(self._rails))
        ran = self._times()
        if ran is not None:
            found = [one.ran(*ran.get(one.seq, (one.entered_ns,) * 2)) for one in found]
        return {
            "name": self._bootstrap.label,
            "id": f"{self.job} {control.number:x}",
            "rank": world.rank,
            "ranks": list(control.ranks),
            "hosts": [numbers.setdefault(m.host, len(numbers)) for m in self._bootstrap.members],
            "transport": world.transport if self._rails else "shm",
            "rails": list(self._rails),
            "events": [event._asdict() | {"device": self._device} for event in found],
            "links": self._links(),
        }

    def _links(self) -> list[dict[str, int]]:
        """Return what went to each remote peer, over all its connections, where that is counted."""
        if not self._rails:
            return []
        found = []
        for peer in range(self._world.size):
            if not self._world.mapped[peer] and (links := trace.comm_links(self._comm, peer)):
                sent, busy = sum(one.sent for one in links), max(one.busy_ns for one in links)
                found.append({"peer": peer, "rail": 0, "sent": sent, "busy_ns": busy})
        return found


def record(reason: str, seconds: float = ALIGN_SECONDS) -> dict[str, Any]:
    """Return what all communicators of this process did last.

    Args:
        reason: Why it is made.
        seconds: How long to wait for the rank by whose clock times are aligned.
    """
    global _reader
    live = list(_live.copy().values())
    if not live:
        return {"comms": []}
    newest = live[-1]
    control = newest.bootstrap.control
    aligned = control.align(seconds)
    with _reading:
        before, _reader = _reader, threading.get_ident()
        try:
            clock = Clock()
            comms = [one.told(clock) for one in _live.copy().values()]
        finally:
            _reader = before
    return {
        "format": FORMAT,
        "version": load.version(),
        "job": newest.job,
        "reason": reason,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": control.job_rank,
        "size": len(control.job()),
        "clock": {
            "monotonic_ns": clock.now_ns,
            "unix_ns": time.time_ns() - (time.monotonic_ns() - clock.now_ns),
            "reference": aligned.reference if aligned else None,
            "offset_ns": aligned.offset_ns if aligned else None,
            "error_ns": aligned.error_ns if aligned else None,
        },
        "comms": comms,
    }


#: Whether calls note where they were made.
PLACES = places.begin()


def _forget_all() -> None:
    global _reading, _reader
    _reading, _reader = threading.RLock(), 0
    _live.clear()


os.register_at_fork(after_in_child=_forget_all)
