"""Plan: a collective bound to its arrays, for calls that repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine


class Plan:
    """A collective bound to its arrays, which it keeps alive; call it as often as you like."""

    def __init__(
        self,
        engine: Engine,
        launch: Callable[[], Any],
        result: Any,
        text: str,
        algorithm: str,
        transport: str,
        timeout: float | None,
        owner: Any,
    ) -> None:
        self._engine = engine
        self._launch = engine.order.noted(launch)
        self._result = result
        self.algorithm = algorithm  #: name of the algorithm that runs
        self.transport = transport  #: what moves the data, such as "shm", "tcp" or "shm+verbs"
        self._text = text
        self._timeout = timeout
        self._owner = owner  # the communicator, the arrays and the native plan
        engine.lend(self)

    def __call__(self) -> Any:
        """Run it and return the result array."""
        try:
            done = self._launch()
            if done.__class__ is int:
                self._engine.waits.finish(done, self._timeout)
                return self._result
            return done
        except BaseException as error:
            self._engine.order.refused(self._text, error)
            raise

    def __repr__(self) -> str:
        return f"<pycoll.Plan {self._text} by {self.algorithm}>"

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Never run again: the communicator closes."""
        self._launch = refuse
