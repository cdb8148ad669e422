"""Plane: the control plane of one process, which all its communicators of a job share.

It lives from the meeting of the ranks until the last of the process's communicators has been
closed. Rank 0 carries everyone's frames, so there it lives on for groups that rank 0 is not in.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

from pycoll.bootstrap.framing import Frame, Kind
from pycoll.bootstrap.reactor import EXITED, Reactor
from pycoll.bootstrap.rendezvous import Star
from pycoll.errors import BootstrapError, UsageError

if TYPE_CHECKING:
    from pycoll.bootstrap.control import Control


class Plane:
    """Hands the frames of one connection to the communicators that they are for.

    Args:
        star: The sockets of a job whose ranks have met.
        timeout: Seconds that the job allows a wait for other ranks.
    """

    def __init__(self, star: Star, timeout: float = 300.0) -> None:
        self.star = star
        self.pid = os.getpid()
        self.forked = False
        self._timeout = timeout
        self._lock = threading.Lock()
        self._controls: dict[int, Control] = {}
        self._lost: dict[int, str] = {}
        self._ended: Exception | None = None
        self._reactor: Reactor | None = None
        if star.size > 1:
            _live.add(self)
            self._reactor = Reactor(star, timeout, self._deliver, self._after, self._end)

    def add(self, control: Control, joining: Frame | None) -> None:
        """Serve a communicator from now on; tell rank 0 if it does not know of it."""
        with self._lock:
            if control.number in self._controls:
                raise UsageError(
                    "group: its ranks have one under this key already; give it a new key"
                )
            self._controls[control.number] = control
            lost, ended = dict(self._lost), self._ended
            if joining and self._reactor:
                self._reactor.post(joining)
        for rank, reason in lost.items():
            control.lose(rank, reason)
        if ended:
            control.end(ended)

    def post(self, *frames: Frame) -> None:
        """Send frames to rank 0; none just has every `Control.tell` called."""
        if self._reactor:
            self._reactor.post(*frames)

    def leave(self, control: Control, farewell: Frame) -> None:
        """Take leave for one communicator; the last one ends the control plane."""
        with self._lock:
            del self._controls[control.number]
            last = not self._controls
        if self._reactor is None:
            return
        if last:
            self._reactor.stop(farewell)
        else:
            self._reactor.post(farewell)

    def current(self) -> bool:
        """Tell whether the caller is the control thread."""
        return self._reactor is not None and self._reactor.current()

    def report(self, error: Exception) -> None:
        """Show an error of a callback."""
        assert self._reactor is not None
        self._reactor.report(error)

    def close(self) -> None:
        """Take leave for every communicator."""
        for control in list(self._controls.values()):
            control.close(reason=EXITED)

    def join(self) -> None:
        """Wait for those who need rank 0's hub although they are in no group with it."""
        if self._reactor:
            self._reactor.join(self._timeout)

    def forget(self) -> None:
        """Run in a forked child: the control plane is the parent's."""
        self.forked = True
        for control in self._controls.values():
            control.forget()
        if self._reactor:
            self._reactor.forget()

    # What follows runs on the control thread.

    def _deliver(self, frame: Frame) -> None:
        if not 0 <= frame.rank < self.star.size:
            raise BootstrapError(f"rank 0 sent {frame.kind.name} about rank {frame.rank}")
        if frame.kind is Kind.LOST:
            self._lose(frame)
        elif control := self._controls.get(frame.group):  # else it was closed meanwhile
            control.deliver(frame)

    def _lose(self, frame: Frame) -> None:
        assert self._reactor is not None
        self._reactor.suspected(frame.rank)
        with self._lock:
            self._lost.setdefault(frame.rank, frame.key)
            controls = list(self._controls.values())
        for control in controls:
            control.lose(frame.rank, frame.key)

    def _after(self) -> None:
        with self._lock:
            controls = list(self._controls.values())
        for control in controls:
            control.tell()

    def _end(self, error: Exception | None) -> None:
        _live.discard(self)
        with self._lock:
            self._ended = error or BootstrapError("the control plane has ended")
            controls = list(self._controls.values())
        for control in controls:
            control.end(self._ended)


#: Control planes that are open in this process.
_live: weakref.WeakSet[Plane] = weakref.WeakSet()


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
