"""Plan: a collective bound to its arrays, for calls that repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from pycoll.arrays.protocol import R

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.native.device_comm import Shape


class Plan(Generic[R]):
    """A collective bound to its arrays, which it keeps alive; call it as often as you like.

    Attributes:
        algorithm: Name of the algorithm that runs.
        transport: What moves the data, such as "shm", "tcp" or "shm+verbs".
        shape: What a call is on a GPU: its `blocks`, how many `instances` of each channel these
            are, the `protocol` ("LL", "Simple" or "direct") and the `threads` of a block; of a list
            of arrays that of the first message. None on the host.

    Example:
        >>> plan = comm.plan("allreduce", np.ones(2))
        >>> plan()
        array([2., 2.])
    """

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
        shape: Shape | None = None,
    ) -> None:
        self._engine = engine
        self._launch = engine.order.noted(launch)
        self._result = result
        self.algorithm = algorithm
        self.transport = transport
        self.shape = shape
        self._text = text
        self._timeout = timeout
        self._owner = owner  # the communicator, the arrays and the native plan
        engine.lend(self)

    def __call__(self) -> R:
        """Run it; all ranks do.

        Returns:
            What the method of the collective returns.

        Raises:
            PycollError: What ended the call; see `Communicator`. A communicator that is closed
                closes its plans, too.

        Example:
            >>> comm.plan("allreduce", np.ones(2), op="max")()
            array([1., 1.])
        """
        try:
            done = self._launch()
            result: R = done if done.__class__ is not int else self._finished(done)
            return result
        except BaseException as error:
            self._engine.order.refused(self._text, error)
            raise

    def _finished(self, done: Any) -> Any:
        """Return the result of a launch, which may have given a code: that call is not over."""
        if done.__class__ is int:
            self._engine.waits.finish(done, self._timeout)
            done = self._result
        return done

    def __repr__(self) -> str:
        shape = "" if self.shape is None else f", {self.shape}"
        return f"<pycoll.Plan {self._text} by {self.algorithm}{shape}>"

    def revoke(self, refuse: Callable[..., Any]) -> None:
        """Never run again: the communicator closes."""
        self._launch = refuse
