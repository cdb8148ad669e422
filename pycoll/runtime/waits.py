"""Waits: how a thread carries native calls, transfers and works to their end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from pycoll.runtime.call_site import amid
from pycoll.runtime.native import bindings, codes

if TYPE_CHECKING:
    from pycoll.errors import PycollError
    from pycoll.runtime.failure import Failure
    from pycoll.runtime.life import Life
    from pycoll.runtime.side import Side

#: A rank that has waited this long says what it is doing; large messages take milliseconds anyway.
_QUIET_SECONDS = 0.01
#: Finished works that nobody waits for are kept, with their arrays, until there are so many.
_FEW = 8


class Pending(Protocol):
    """Work that has been started, and that nobody has waited for."""

    def done(self) -> bool:
        """Tell whether it has ended."""

    def exception(self) -> PycollError | None:
        """Wait until it has ended; return what went wrong."""


class Waits:
    """Those on one communicator.

    Args:
        comm: The native communicator.
        side: What runs its calls.
        failure: What knows of its failures.
        life: Whether it may be used.
        timeout: Seconds that a call may take by default.
        pause: Seconds after which a native wait returns to Python, see `slice_seconds`.
    """

    def __init__(
        self, comm: Any, side: Side, failure: Failure, life: Life, timeout: float, pause: float
    ) -> None:
        self._comm, self._side, self._failure, self._life = comm, side, failure, life
        self._timeout, self._pause = timeout, pause
        self.waiter = 0  #: the thread that waits for an unfinished call
        self._pending: set[Pending] = set()
        self._many = _FEW  #: pending works at which to look which are finished

    def call(self, plan: Any, x: int, out: int, timeout: float | None = None) -> None:
        """Run a plan on the arrays at two addresses, to its end."""
        seconds = self._timeout if timeout is None else timeout
        try:
            code = bindings.run(self._comm, plan, x, out, seconds)
            if code:
                self.finish(code, seconds)
        except BaseException as error:
            self.interrupted(error)
            raise

    def finish(self, code: int, timeout: float | None = None) -> None:
        """Carry a call that gave ``code`` instead of a result to its end, or raise."""
        if code == codes.AGAIN:
            self.waiter = threading.get_ident()
            code = bindings.resume(self._comm, _QUIET_SECONDS)
            while code == codes.AGAIN:
                self._failure.describe()
                self._failure.look()
                code = bindings.resume(self._comm, self._pause)
            self.waiter = 0
        if code:
            self._failure.raise_for(code, self._timeout if timeout is None else timeout)

    def finish_on(self, code: int, *arrays: Any) -> None:
        """Carry a call on buffers to its end; meanwhile no other thread can resize them."""
        held = [memoryview(array) for array in arrays if array is not None]
        try:
            self.finish(code)
        finally:
            for view in held:
                view.release()

    def finish_transfer(self, code: int, timeout: float) -> None:
        """Carry a transfer, which is in no status, to its end, or raise."""
        if code == codes.AGAIN:
            self.waiter = threading.get_ident()
            while code == codes.AGAIN:
                self._failure.heed_missed(waiting=True)
                code = bindings.resume(self._comm, self._pause)
            self.waiter = 0
        if code:
            self._failure.raise_for(code, timeout)

    def interrupted(self, error: BaseException) -> None:
        """Break the communicator if ``error`` left a call unfinished in this thread."""
        if amid(self._comm):  # the call that is unfinished is another one, which goes on
            return
        mine = self.waiter in (0, threading.get_ident())
        if mine and not self._life.over:
            self.waiter = 0
            self._failure.interrupted(error)

    # Works.

    def work_place(self) -> Any:
        """Return where `submit` may put native work."""
        return bindings.work_place()

    def submit(self, plan: Any, x: int, out: int, timeout: float, where: str, work: Any) -> None:
        """Queue a plan behind what was queued before; the native work goes to ``work``."""
        code = bindings.submit(self._comm, plan, x, out, timeout, where, work)
        if code:
            self._failure.raise_for(code, timeout)

    def wait(self, work: Any, seconds: float) -> int | None:
        """Wait for native work for a moment, at most so long; return its code, or None."""
        return self._side.wait(work, seconds)

    def track(self, work: Pending) -> None:
        """Keep ``work``, and so its arrays, until it is over."""
        self._pending.add(work)
        if len(self._pending) < self._many:
            return
        for old in list(self._pending):
            if old is not work and old.done():
                old.exception()
        self._many = max(_FEW, 2 * len(self._pending))  # so that it costs each work the same

    def finish_pending(self) -> None:
        """Wait for all works that are kept."""
        for work in list(self._pending):
            work.exception()

    def pending(self) -> bool:
        """Tell whether works are kept."""
        return bool(self._pending)

    def settled(self, work: Pending) -> None:
        """Let go of ``work``: it needs neither native code nor its arrays any more."""
        self._pending.discard(work)
