"""The control plane of one process, which all its communicators of a job share.

It lives from the meeting of the ranks until the last of the process's communicators has been
closed. The rank that carries everyone's frames goes on while others need that, until its process
ends; then another takes its place.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from typing import Protocol

from pycoll import log
from pycoll.bootstrap.control_loop import ControlLoop
from pycoll.bootstrap.control_router import RANK
from pycoll.bootstrap.framing import Frame, FrameType
from pycoll.bootstrap.reasons import CLOSED, EXITED
from pycoll.bootstrap.rendezvous import Star
from pycoll.errors import BootstrapError, UsageError

#: How long the end of a process waits for those who need its router.
HANDOVER_SECONDS = 0.5
#: Farewells that are kept.
REMEMBERED = 256


class Share(Protocol):
    """What a communicator has of the control plane; all but `close` are for the control thread."""

    number: int

    def deliver(self, frame: Frame) -> None:
        """Take a frame that is for this communicator."""

    def lose(self, rank: int, reason: str) -> None:
        """Hear that a rank of the job is gone."""

    def tell(self) -> None:
        """Call back with what has been delivered."""

    def end(self, error: Exception) -> None:
        """Hear that the control plane has ended."""

    def recall(self) -> list[Frame]:
        """Return all that another router has to know of it."""

    def close(self, calls: int = 0, *, reason: str = EXITED) -> None:
        """Take leave."""

    def forget(self) -> None:
        """Let go, in the child of a fork."""


class ControlPlane:
    """Hands the frames of one connection to the communicators that they are for.

    Args:
        star: The sockets of a job whose ranks have met.
        timeout: Seconds that the job allows a wait for other ranks.
    """

    # A communicator may be closed by a finalizer or a signal handler, in the very thread that is
    # amid what follows, and whoever closes the last one waits for the control thread. So nobody
    # waits for a lock here: all rely on single operations of dicts and deques, and on their order.

    def __init__(self, star: Star, timeout: float = 300.0) -> None:
        self.star = star
        self.pid = os.getpid()
        self.forked = False
        self._timeout = timeout
        self._controls: dict[int, Share] = {}
        self._lost: dict[int, str] = {}
        self._leaving: deque[tuple[Share, list[Frame]]] = deque()
        self._parting = threading.Lock()  # held, never waited for, by the one who empties it
        # What each communicator that this process left had said, the farewell last, for a router
        # that takes another's place: the one before may not have passed it on.
        self._left: deque[list[Frame]] = deque(maxlen=REMEMBERED)
        self._ended: Exception | None = None
        self._loop: ControlLoop | None = None
        if star.size > 1:
            self._loop = ControlLoop(
                star, timeout, self._deliver, self._after, self._end, self._recall
            )

    def add(self, control: Share, joining: Frame | None) -> None:
        """Serve a communicator from now on; the first of all is that of all ranks.

        Args:
            control: Its share.
            joining: What tells rank 0 of it; None of the first, which rank 0 knows.
        """
        if self._controls.setdefault(control.number, control) is not control:
            raise UsageError("group: its ranks have one under this key already; give it a new key")
        if joining:
            self.post(joining)
        # Only now: what comes between is told twice, which is once, and not missed.
        for rank, reason in self._lost.copy().items():
            control.lose(rank, reason)
        if self._ended:
            control.end(self._ended)
        if joining is None and self._loop:
            _live.add(self)
            self._loop.start()  # not before: a router may be told at once which groups there are

    def post(self, *frames: Frame) -> None:
        """Send frames to rank 0; none just has every `Share.tell` called."""
        if self._loop:
            self._loop.post(*frames)

    def leave(self, control: Share, said: list[Frame]) -> None:
        """Take leave for one communicator; the last one ends the control plane.

        Amid another's leave this returns at once, and whoever is there sees to both.

        Args:
            control: Its share.
            said: All that another router has to know of it; the last frame is the farewell.
        """
        self._leaving.append((control, said))
        while self._leaving and self._parting.acquire(blocking=False):
            try:
                while self._leaving:
                    self._part(*self._leaving.popleft())
            finally:
                self._parting.release()

    def _part(self, control: Share, said: list[Frame]) -> None:
        if self._controls.get(control.number) is not control:
            return  # it was closed amid its own close
        self._left.append(said)
        farewell = said[-1]
        del self._controls[control.number]
        if self._loop is None:
            return
        if self._controls:
            self._loop.post(farewell)
        else:
            self._loop.stop(farewell)

    def current(self) -> bool:
        """Tell whether the caller is the control thread."""
        return self._loop is not None and self._loop.current()

    def forsake(self) -> bool:
        """Turn to another router, as this one does not answer; False: it is this rank."""
        return self._loop is not None and self._loop.forsake()

    def report(self, error: Exception) -> None:
        """Show an error of a callback."""
        assert self._loop is not None
        self._loop.report(error)

    def close(self) -> None:
        """Take leave for every communicator."""
        for control in self._controls.copy().values():
            control.close(reason=EXITED)

    def join(self) -> None:
        """Wait a moment for those who need this process's router; then another takes its place."""
        if self._loop:
            self._loop.retire(HANDOVER_SECONDS)

    def forget(self) -> None:
        """Run in a forked child: the control plane is the parent's."""
        self.forked = True
        for control in self._controls.values():
            control.forget()
        if self._loop:
            self._loop.forget()

    # What follows runs on the control thread.

    def _deliver(self, frame: Frame) -> None:
        if not 0 <= frame.rank < self.star.size:
            raise BootstrapError(
                f"the control router sent {frame.kind.name} about rank {frame.rank}"
            )
        if frame.kind is FrameType.LOST:
            self._lose(frame)
        elif control := self._controls.get(frame.group):  # else it was closed meanwhile
            control.deliver(frame)

    def _recall(self) -> list[Frame]:
        controls = self._controls.copy()  # first: who leaves is in the other before it is out
        frames = []
        for said in self._left.copy():
            frames += said
            controls.pop(said[-1].group, None)
        for control in controls.values():
            frames += control.recall()
        me, lost = self.star.rank, self._lost.copy()
        frames += [Frame(FrameType.HEARD, me, why, RANK.pack(rank)) for rank, why in lost.items()]
        return frames

    def _lose(self, frame: Frame) -> None:
        assert self._loop is not None
        self._loop.gone(frame.rank)
        if frame.rank not in self._lost and frame.key not in (CLOSED, EXITED):
            text = "rank %d: rank %d of the job is gone: %s"
            log.warning("control", text, self.star.rank, frame.rank, frame.key)
        self._lost.setdefault(frame.rank, frame.key)
        for control in self._controls.copy().values():
            control.lose(frame.rank, frame.key)

    def _after(self) -> None:
        for control in self._controls.copy().values():
            control.tell()

    def _end(self, error: Exception | None) -> None:
        _live.discard(self)
        self._ended = error or BootstrapError("the control plane has ended")
        for control in self._controls.copy().values():
            control.end(self._ended)


#: Control planes that are open in this process.
_live: weakref.WeakSet[ControlPlane] = weakref.WeakSet()


def leave_all() -> None:
    """Take leave on behalf of whoever did not: the interpreter is about to end."""
    planes = list(_live)
    for plane in planes:
        plane.close()
    for plane in planes:  # only now: who waits for another's farewell has said its own
        plane.join()


def _forget_all() -> None:
    for plane in list(_live):
        plane.forget()
    _live.clear()


atexit.register(leave_all)
os.register_at_fork(after_in_child=_forget_all)
