"""Side: what runs the calls of a communicator, as the engine knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pycoll.runtime.failure import Failure


class Side(Protocol):
    """What runs the calls of a communicator: threads of the host, or a GPU."""

    @property
    def device_name(self) -> str:
        """Return where calls run: "cpu", or such as "cuda:0"."""

    def times(self) -> dict[int, tuple[int, int | None]] | None:
        """Return when calls ran that the host only enqueues, by number; None: it makes them itself.

        In nanoseconds of CLOCK_MONOTONIC. None as the second: it has not ended. Of a call that is
        not there nobody knows.
        """

    @property
    def make_failure(self) -> Callable[..., Failure]:
        """Return what makes the object that knows of failures."""

    def refuse(self) -> int | None:
        """Count a call that was refused; return its number, None if there are no more calls."""

    def refuse_message(self, peer: int, sending: bool) -> bool:
        """Have a message that was refused take its place; False: there are no more messages."""

    def calls(self) -> int:
        """Return how many calls this rank has finished, or launched."""

    def busy(self) -> bool:
        """Tell whether something runs that no thread of the host is inside of."""

    def wait(self, work: Any, seconds: float) -> int | None:
        """Wait for native work for a moment, at most so long; return its code, or None."""

    def inside(self) -> bool:
        """Tell whether other threads are in `wait`, which return as soon as the work has ended."""

    def drain(self) -> None:
        """Wait until all that was launched has ended."""

    def shut(self, reason: str) -> None:
        """Give back what the engine does not know of: it leaves."""
