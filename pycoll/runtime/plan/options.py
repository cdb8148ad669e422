"""What a collective's method takes beside its arrays. Light, as `communicator` needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

if TYPE_CHECKING:
    from pycoll.order import OrderName
    from pycoll.runtime.plan.call import Wanted
    from pycoll.schedule import Algorithm


# What a type checker is told of the options of a call: they say whether it returns a Work.


class Waits(TypedDict, total=False):
    """Of a call that returns when it is done."""

    async_op: Literal[False]
    timeout: float | None


class Queued(TypedDict):
    """Of a call that returns at once."""

    async_op: Literal[True]
    timeout: NotRequired[float | None]


class Either(TypedDict):
    """Of a call of which only the run tells."""

    async_op: bool
    timeout: NotRequired[float | None]


class WaitsBy(Waits, total=False):
    """The same, of a call that an algorithm serves."""

    algorithm: Algorithm | str | None


class QueuedBy(Queued):
    """The same, of a call that an algorithm serves."""

    algorithm: NotRequired[Algorithm | str | None]


class EitherBy(Either):
    """The same, of a call that an algorithm serves."""

    algorithm: NotRequired[Algorithm | str | None]


class WaitsInOrder(WaitsBy, total=False):
    """The same, of a call that folds."""

    order: OrderName | None


class QueuedInOrder(QueuedBy):
    """The same, of a call that folds."""

    order: NotRequired[OrderName | None]


class EitherInOrder(EitherBy):
    """The same, of a call that folds."""

    order: NotRequired[OrderName | None]


class Bound(TypedDict, total=False):
    """Of a call that is bound to its arrays."""

    counts: Sequence[int] | None
    algorithm: Algorithm | str | None
    timeout: float | None
    order: OrderName | None


@dataclass(frozen=True, slots=True)
class Ordered:
    """An algorithm, and an order other than the communicator's.

    They are one value, as plans are found by what was asked for: the native dispatchers take any
    that has a hash. It is no tuple, which a user's own could equal.
    """

    algorithm: Wanted
    order: Any  #: as it was passed


if TYPE_CHECKING:
    #: What plans are found by beside the call.
    Asked = Wanted | Ordered


class CallOptions(NamedTuple):
    """What a user asks for, as it was passed: nothing has been checked."""

    op: str = "sum"
    root: Any = 0
    counts: Sequence[int] | None = None
    algorithm: Asked = None
    timeout: float | None = None
    purpose: str = ""  #: the method, where it is none of the collective's own
    fixed: bool = False  #: fold in the fixed order, once the call has been looked at

    @property
    def repeats(self) -> bool:
        """Whether it asks for nothing that makes a call another one than those before it."""
        return self.timeout is None and self.counts is None and not self.purpose

    @property
    def method(self) -> str:
        """Name of the method that `purpose` stands for; empty if there is none."""
        return self.purpose.removeprefix("lengths of ").partition("(")[0]
