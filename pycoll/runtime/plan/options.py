"""What a collective's method takes beside its arrays. Light, as `communicator` needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pycoll.runtime.plan.call import Wanted


class CallOptions(NamedTuple):
    """What a user asks for, as it was passed: nothing has been checked."""

    op: str = "sum"
    root: Any = 0
    counts: Sequence[int] | None = None
    algorithm: Wanted = None
    timeout: float | None = None
    purpose: str = ""  #: the method, where it is none of the collective's own

    @property
    def repeats(self) -> bool:
        """Whether it asks for nothing that makes a call another one than those before it."""
        return self.timeout is None and self.counts is None and not self.purpose

    @property
    def method(self) -> str:
        """Name of the method that `purpose` stands for; empty if there is none."""
        return self.purpose.removeprefix("lengths of ").partition("(")[0]
