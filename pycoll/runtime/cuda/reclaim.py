"""Reclaimer: lets go of arrays once nothing runs that may use them, without a further call.

It also has the allocations closed that users have freed and peers have open. To let go of an array
may free memory of a GPU, and the driver frees, and closes, none before all kernels of the
process have ended. A kernel of ours ends when every rank has launched its own; one of these ranks
may be a thread of this process, which the driver meanwhile keeps from launching. So nothing is let
go of unless all that the device communicators of this process have launched has ended, and none of
them can launch any: their turns are taken, though never waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Protocol

from pycoll.errors import PycollError
from pycoll.runtime.native import cuda

#: Seconds after which it is looked whether arrays can go, and up to which that doubles if they
#: cannot.
_PAUSE, _MOST_PAUSE = 0.05, 1.0
#: Seconds that the last communicator waits for the thread to end.
_JOIN_SECONDS = 1.0


class Held(Protocol):
    """Arrays that launches may use."""

    def __bool__(self) -> bool:
        """Tell whether there is any, but for those of graphs."""

    def let_go(self) -> None:
        """Let go of one."""


class Launcher(Protocol):
    """What is used here of a device communicator."""

    device: int
    turn: Any
    registers: bool  #: allocations of users may be open, here or at peers

    @property
    def held(self) -> Held:
        """Return what its launches may use."""

    def quiet(self) -> bool:
        """Tell whether nothing that was launched runs, nor a graph can launch any."""

    def tidy(self) -> None:
        """Have what users have freed closed."""

    def forked(self) -> None:
        """Have new locks, in the child of a fork."""


class Reclaimer:
    """That of a process.

    It has a thread as long as arrays are held, or allocations of users are open, and no longer.
    Finalizers run in that thread, one array at a time. They may call this communicator, or close
    it: its locks are reentrant. Who launches meanwhile waits until that one array has gone.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._launchers: list[Launcher] = []
        self._passing = threading.RLock()  #: an array is let go of: no communicator may come
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()

    def enter(self, launcher: Launcher) -> None:
        """Take a device communicator in, before it can launch anything."""
        with self._passing:
            self._launchers.append(launcher)

    def leave(self, launcher: Launcher) -> None:
        """Forget one that holds nothing and launches nothing any more."""
        with contextlib.suppress(ValueError):
            self._launchers.remove(launcher)
        thread = self._thread
        if thread is None or self._anything():
            return
        self._woken.set()
        if not self._launchers and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def notice(self) -> None:
        """See to it that what is held now is let go of."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pycoll-reclaim", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    self._thread = None

    def forked(self) -> None:
        """In the child of a fork: everything belongs to the parent, and the thread is not here."""
        for launcher in self._launchers:
            launcher.forked()
        self._reset()

    def _anything(self) -> bool:
        return any(each.held or each.registers for each in list(self._launchers))

    def _run(self) -> None:
        try:
            self._look()
        finally:  # if it ended by an error, another one takes its place
            with self._starting:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _look(self) -> None:
        pause, relaxed = _PAUSE, False
        while True:
            if self._woken.wait(pause):
                self._woken.clear()
            if not self._anything() and self._ended():
                return
            # What captures of other threads forbid harms them unless this one says so.
            relaxed = relaxed or self._relax()
            went = relaxed and self._pass()
            while went and self._pass():
                self._woken.wait(0)  # who waits for a turn has it first
            pause = _PAUSE if went else min(2 * pause, _MOST_PAUSE)

    def _ended(self) -> bool:
        """Have no thread any more; False: this one goes on, since something is held again."""
        with self._starting:
            self._thread = None
        if not self._anything():
            return True
        with self._starting:
            if self._thread is not None:
                return True
            self._thread = threading.current_thread()
        return False

    def _relax(self) -> bool:
        for launcher in list(self._launchers):
            try:
                cuda.thread_mode(launcher.device, cuda.RELAXED)
            except PycollError:  # a fault on that GPU: nothing is told of it any more
                return False
            return True
        return False

    def _pass(self) -> bool:
        """Let go of one array, if nothing runs; tell whether one has gone."""
        with contextlib.ExitStack() as taken:
            taken.enter_context(self._passing)
            launchers = list(self._launchers)
            for launcher in launchers:
                if not launcher.turn.acquire(blocking=False):
                    return False
                taken.callback(launcher.turn.release)
            if not all(launcher.quiet() for launcher in launchers):
                return False
            for launcher in launchers:
                with contextlib.suppress(PycollError):
                    launcher.tidy()
            holder = next((launcher for launcher in launchers if launcher.held), None)
            if holder is None:
                return False
            try:
                with cuda.current(holder.device):  # which finalizers may count on
                    holder.held.let_go()
            except PycollError:
                return False
            return True


RECLAIMER = Reclaimer()


def _forked() -> None:
    RECLAIMER.forked()


os.register_at_fork(after_in_child=_forked)
