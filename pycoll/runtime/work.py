"""Work: a collective that runs beside its caller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycoll.errors import CollectiveTimeout, PycollError

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine


class Work:
    """What ``async_op=True`` returns. Its arrays stay alive until it is finished.

    Until `wait` has returned, the input must not be written and the result not be read.
    """

    def __init__(self, engine: Engine, where: str, timeout: float, owner: Any) -> None:
        self._engine = engine
        self._where = where
        self._timeout = timeout
        self._owner = owner  #: the communicator, and all that must not be collected
        self._parts: list[Any] = []  #: native work, not finished
        self._error: PycollError | None = None
        self._finish: Callable[[], Any] | None = None
        self._value: Any = None

    def start(self, parts: list[tuple[Any, int, int]], finish: Callable[[], Any]) -> Work:
        """Queue plans with their addresses; ``finish`` makes the result when all are done."""
        self._finish = finish
        # The plans too: the cache that made them may forget them before they have run.
        self._owner = (self._owner, parts)
        self._engine.track(self)
        for plan, x, out in parts:
            self._parts.append(self._engine.submit(plan, x, out, self._timeout, self._where))
        return self

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result; raise what went wrong.

        Args:
            timeout: Seconds to wait at most. When they pass, CollectiveTimeout is raised and the
                work goes on: its own deadline is what was given to the collective.
        """
        if not self._advance(math.inf if timeout is None else timeout):
            raise CollectiveTimeout(
                f"{self._where} is not finished after {timeout:g} s; it goes on, wait again"
            )
        if self._error is not None:
            raise self._error
        return self._result()

    def done(self) -> bool:
        """Tell whether `wait` would return, or raise, at once."""
        return self._advance(0)

    def exception(self) -> PycollError | None:
        """Return what went wrong, or None; waits until the work is finished."""
        self._advance(math.inf)
        return self._error

    def settle(self) -> None:
        """Wait until nothing is under way any more; an error is kept for `wait`."""
        self._advance(math.inf)

    def _advance(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._parts:
            code = self._engine.wait(self._parts[0], max(0.0, until - time.monotonic()))
            if code is None:
                return False
            self._engine.free(self._parts.pop(0))
            if code and self._error is None:
                try:
                    self._engine.faults.raise_for(code, self._timeout, self._where)
                except PycollError as error:
                    self._error = error
        return True

    def _result(self) -> Any:
        if self._finish is not None:
            self._value, self._finish, self._owner = self._finish(), None, None
        return self._value
