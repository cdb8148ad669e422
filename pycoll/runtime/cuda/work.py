"""StreamWork: a collective on a stream of its own, beside the stream of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycoll.errors import UsageError
from pycoll.runtime.work import Work

if TYPE_CHECKING:
    from pycoll.runtime.cuda.device_comm import DeviceComm
    from pycoll.runtime.cuda.stream import Event


class StreamWork(Work):
    """What ``async_op=True`` returns for arrays in a GPU's memory.

    `wait` orders: what is enqueued on the caller's stream from then on runs behind the collective,
    and `wait` itself returns at once. `synchronize`, `exception` and `done` are about the host.
    """

    def __init__(
        self,
        dc: DeviceComm,
        where: str,
        timeout: float,
        owner: Any,
        stream: Callable[[], int],
        result: Any,
    ) -> None:
        super().__init__(dc.engine, where, timeout, owner)
        self._dc = dc
        self._stream = stream  #: says which stream is the caller's
        self._value = result
        self._event: Event | None = None
        self._captured = False

    def launched(self, event: Event, captured: bool) -> StreamWork:
        """Say that everything is enqueued, in front of an event.

        Args:
            event: Of the stream that it runs on.
            captured: In a graph an event is a place, at which nothing ever arrives for the host.
        """
        self._event, self._captured = event, captured
        if not captured:
            self._parts.append(event)
            self._engine.waits.track(self)
        return self

    def wait(self, timeout: float | None = None) -> Any:
        """Let the caller's stream wait, and return the result at once; raise a known failure.

        Args:
            timeout: Not used: it does not wait.
        """
        self._engine.life.require_own("wait")
        if self._parts and self._error is None:
            self._dc.check(self._where)
        if self._error is not None:
            raise self._error
        if self._event is not None:
            self._event.hold_back(self._stream())
        return self._value

    def synchronize(self, timeout: float | None = None) -> Any:
        """Wait on the host until it is finished, and return the result; raise what went wrong.

        Args:
            timeout: Seconds to wait at most; the work goes on.
        """
        if self._captured:
            raise UsageError(
                f"{self._where} is captured into a graph: it runs when that is launched; wait for "
                "the stream that launches it"
            )
        return super().wait(timeout)

    def _result(self) -> Any:
        with self._lock:
            self._owner = None
            return self._value
