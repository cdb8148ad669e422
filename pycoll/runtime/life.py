"""Life: whether a communicator may still be used, and by this process."""

from __future__ import annotations

import os
from typing import Any

from pycoll.errors import ClosedError, UsageError


class Life:
    """What one engine and its parts ask before they use native code."""

    def __init__(self) -> None:
        self.closed = False
        self.parent = 0  #: in the child of a fork, the process that the communicator belongs to
        self._pid = os.getpid()

    @property
    def over(self) -> bool:
        """Tell whether it is closed, or another process's."""
        return self.closed or self.parent != 0

    def forked(self) -> None:
        """Note that this is the child of a fork."""
        self.parent = self._pid

    def require_usable(self, what: str) -> None:
        """Raise what keeps the communicator from being used, if anything does."""
        if self.parent or self.closed:
            self.require_own(what)
            raise ClosedError(f"{what}: the communicator is closed")

    def require_own(self, what: str) -> None:
        """Raise UsageError in the child of a fork."""
        if self.parent:
            raise UsageError(
                f"{what}: this communicator belongs to process {self.parent}, and this is its "
                f"child {os.getpid()}: call pycoll.init() in the process that uses it"
            )

    def refuse(self, *arguments: Any) -> Any:
        """Stand in for what was revoked."""
        self.require_usable("call")
        raise ClosedError("the communicator is closed")
