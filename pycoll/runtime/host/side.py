"""The host's side of a communicator: its calls run on threads of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pycoll.runtime.failure import Failure
from pycoll.runtime.native import bindings, codes

if TYPE_CHECKING:
    from pycoll.runtime.join import World

#: A native wait returns to Python this often, for Ctrl-C and a look at the other ranks' statuses.
_SLICE_SECONDS = 0.1
#: Ranks of a host that do so; more do it more rarely, or a thousand keep a core busy with looking.
_LOOKERS = 128


def slice_seconds(near: int, timeout: float) -> float:
    """Return after how many seconds a native wait returns to Python.

    Args:
        near: Ranks of this host.
        timeout: Seconds that a call may take, in which a rank is to look several times.
    """
    rarer = _SLICE_SECONDS * near / _LOOKERS
    return max(_SLICE_SECONDS, min(rarer, timeout / 8))


class HostSide:
    """What counts, refuses and waits for the calls of one native communicator."""

    make_failure = Failure
    device_name = "cpu"

    def __init__(self, comm: Any, world: World) -> None:
        self._comm, self._rank = comm, world.rank
        self._inside: set[int] = set()  #: threads that wait for works at this moment

    def times(self) -> dict[int, tuple[int, int | None]] | None:
        """Return None: the threads of the host note when calls begin and end."""
        return None

    def refuse(self) -> int | None:
        """Count a call that was refused; return its number, None if there are no more calls."""
        return bindings.refuse(self._comm)

    def refuse_message(self, peer: int, sending: bool) -> bool:
        """Have a message that was refused take its place; False inside another call."""
        return bindings.refuse_message(self._comm, peer, sending)

    def calls(self) -> int:
        """Return how many calls this rank has finished."""
        own = bindings.status_read(self._comm, self._rank)
        return own.sequence - (own.state == bindings.CALLING)

    def busy(self) -> bool:
        """Tell whether something runs that no thread is inside of: nothing does."""
        return False

    def wait(self, work: Any, seconds: float) -> int | None:
        """Wait for native work for a moment, at most so long; return its code, or None."""
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            code = bindings.work_wait(work, min(seconds, _SLICE_SECONDS))
        finally:
            self._inside.discard(thread)
        return None if code == codes.AGAIN else code

    def inside(self) -> bool:
        """Tell whether other threads are in `wait`."""
        return bool(self._inside - {threading.get_ident()})

    def drain(self) -> None:
        """Do nothing: whoever closes waits for what is queued."""

    def shut(self, reason: str) -> None:
        """Do nothing: all is the engine's."""
