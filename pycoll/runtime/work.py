"""Work: a collective that runs beside its caller."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self

from pycoll.arrays.protocol import R
from pycoll.errors import CollectiveTimeout, PycollError, UsageError, quoted
from pycoll.runtime.call_site import user_line

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan


class Work(Generic[R]):
    """What ``async_op=True`` returns: a call that is under way.

    Until `wait` has returned, the input must not be written and the result not be read. The arrays
    stay alive until it is finished. Any thread may wait, and several at once.

    Example:
        >>> work = comm.allreduce(np.ones(2), async_op=True)
        >>> work.wait()
        array([2., 2.])
    """

    # Finished native work says its code as often as it is asked, and goes with the last thread
    # that asks. Only what follows is done once, under a lock.

    def __init__(self, engine: Engine, where: str, timeout: float, owner: Any) -> None:
        self._engine = engine
        self._where = where
        self._timeout = timeout
        self._owner = owner  #: the communicator, and all that must not be collected
        self._parts: list[Any] = []  #: native work, until what came of it is known here
        self._lock = threading.RLock()  #: reentrant: a signal handler may wait, too
        self._error: PycollError | None = None
        self._finish: Callable[[], Any] | None = None
        self._value: Any = None

    def start(self, parts: list[tuple[BoundPlan, int, int]], finish: Callable[[], Any]) -> Self:
        """Queue plans with their addresses; ``finish`` makes the result when all are done."""
        self._finish = finish
        # The plans too: the cache that made them may forget them before they have run.
        self._owner = (self._owner, parts)
        self._engine.waits.track(self)
        for plan, x, out in parts:
            # In its place before it runs: no exception comes between the two.
            self._parts.append(self._engine.waits.work_place())
            self._engine.waits.submit(
                plan.handle, x, out, self._timeout, self._where, self._parts[-1]
            )
        return self

    def begin(self, submit: Callable[[Any], int], finish: Callable[[], Any]) -> Self:
        """Start one native work: ``submit`` puts it into a place and returns its code."""
        self._finish = finish
        self._engine.waits.track(self)
        self._parts.append(self._engine.waits.work_place())
        code = submit(self._parts[-1])
        if code:
            self._engine.failure.raise_for(code, self._timeout)
        return self

    def wait(self, timeout: float | None = None) -> R:
        """Wait until the call is done, and return its result.

        Args:
            timeout: Seconds to wait at most; None: until the call ends, at its own deadline.

        Returns:
            What the method returns without ``async_op``. On a GPU it is there when the current
            stream has come to it, and this returns at once.

        Raises:
            CollectiveTimeout: The seconds have passed; the call goes on, so wait again.
            UsageError: ``timeout`` is no number of at least 0.
            PycollError: What ended the call; see `Communicator`.

        Example:
            >>> comm.allreduce(np.ones(2), async_op=True).wait(timeout=60)
            array([2., 2.])
        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise UsageError(
                f"wait: timeout is {quoted(timeout)}, want seconds, at least 0, or None"
            )
        if not self._finished(math.inf if timeout is None else timeout):
            raise CollectiveTimeout(
                f"{self._where} is not finished after {timeout:g} s; it goes on, wait again"
            )
        error = self.exception()
        if error is not None:
            raise error
        result: R = self._result()
        return result

    def __repr__(self) -> str:
        if self._error is not None:
            state = f"failed: {type(self._error).__name__}"
        else:
            state = "under way" if self._parts else "finished"
        return f"<pycoll.Work {self._where}, {state}>"

    def synchronize(self, timeout: float | None = None) -> R:
        """Wait on the host until the call is done; on arrays in its memory `wait` does the same.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            What `wait` returns.

        Raises:
            PycollError: As `wait`.

        Example:
            >>> comm.allreduce(np.ones(2), async_op=True).synchronize()
            array([2., 2.])
        """
        return self.wait(timeout)

    def done(self) -> bool:
        """Tell whether `wait` would return, or raise, at once.

        Returns:
            True or False; it does not wait.

        Raises:
            UsageError: This is the child of a fork, and the work is its parent's.

        Example:
            >>> work = comm.barrier(async_op=True)
            >>> work.wait(), work.done()
            (None, True)
        """
        return self._finished(0)

    def exception(self) -> PycollError | None:
        """Wait until the call is done, and return what went wrong.

        Returns:
            What `wait` raises; None if nothing went wrong.

        Raises:
            UsageError: This is the child of a fork, and the work is its parent's.

        Example:
            >>> comm.allreduce(np.ones(2), async_op=True).exception() is None
            True
        """
        self._finished(math.inf)
        with self._lock:
            for part in self._parts:
                code = self._engine.waits.wait(part, 0)
                if code and self._error is None:
                    try:
                        self._engine.failure.raise_for(code, self._timeout, self._where)
                    except PycollError as error:
                        self._error, self._finish, self._owner = error, None, None
            # Last: if Ctrl-C interrupts the report, the next who asks finds the failure again.
            self._parts = []
            self._engine.waits.settled(self)
        return self._error

    def _tell_end(self, told: Callable[[PycollError | None], object]) -> None:
        """Call ``told`` with what went wrong, once, in the thread that finds out that it is over.

        In a graph that is captured nobody finds out: it is told at once that it is in there.
        """
        settle = self.exception

        def exception() -> PycollError | None:
            error = settle()
            if vars(self).pop("exception", None) is not None:  # several threads may come here
                told(error)
            return error

        if self._parts:
            vars(self)["exception"] = exception
        else:
            told(self._error)

    def _finished(self, seconds: float) -> bool:
        self._engine.life.require_own("wait")
        until = time.monotonic() + seconds
        for part in self._parts:
            while self._engine.waits.wait(part, left := max(0.0, until - time.monotonic())) is None:
                if not left:
                    return False
                with self._lock:
                    if self._parts:  # else it is over by now, and the engine may be closed
                        self._engine.failure.look()
        return True

    def _result(self) -> Any:
        with self._lock:
            if self._finish is not None:
                self._value, self._finish, self._owner = self._finish(), None, None
            return self._value


class Works:
    """Where the works of one communicator come from. The communicator holds it."""

    def __init__(self, engine: Engine, owner: Any) -> None:
        self._engine = engine
        self._owner = weakref.ref(owner)

    def owner(self) -> Any:
        """Return the communicator, to be held by what needs it."""
        return self._owner()

    def work(self, text: str, timeout: float | None, pins: Any) -> Work:
        """Return a Work that is not started yet, and that holds ``pins``."""
        seconds = self._engine.timeout if timeout is None else timeout
        return Work(self._engine, f"{text} at {user_line()}", seconds, (self.owner(), pins))
