"""OpOrder: which calls and messages a rank has begun, so that the ranks stay in step."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pycoll.errors import (
    BrokenError,
    BusyError,
    MismatchError,
    PeerLostError,
    PycollError,
)
from pycoll.runtime.call_site import amid
from pycoll.runtime.failure import TOLD
from pycoll.runtime.native import bindings, load

if TYPE_CHECKING:
    from pycoll.runtime.arenas import Arenas
    from pycoll.runtime.failure import Failure
    from pycoll.runtime.life import Life
    from pycoll.runtime.side import Side
    from pycoll.runtime.waits import Waits

#: Of messages the peer, as the user gave it, and whether they are sent.
Directions = Iterable[tuple[Any, bool]]


class OpOrder:
    """The operations of one communicator.

    Args:
        comm: The native communicator.
        size: How many ranks it has.
        side: What runs its calls.
        waits: How threads wait for them.
        failure: What knows of its failures.
        life: Whether it may be used.
        dispatcher: What starts cached plans without Python's help.
        arenas: The memory of its peers.
    """

    def __init__(
        self,
        comm: Any,
        size: int,
        side: Side,
        waits: Waits,
        failure: Failure,
        life: Life,
        dispatcher: Any,
        arenas: Arenas,
    ) -> None:
        self._comm, self._size, self._side, self._waits = comm, size, side, waits
        self._failure, self._life, self._dispatcher = failure, life, dispatcher
        self._arenas = arenas
        #: Those of communicators that belong to this one, such as its GPU's.
        self.followers: list[OpOrder] = []
        #: Messages that were refused, by the peer and whether they are sent.
        self._refused: Counter[tuple[int, bool]] = Counter()

    def follow(self, order: OpOrder) -> None:
        """Count here, too, what another one is refused, and what it was refused so far."""
        order.followers.append(self)
        for (peer, sending), times in order._refused.items():
            for _ in range(times):
                self._side.refuse_message(peer, sending)
        self._failure.heed_refused(order._failure)

    def count(self) -> int:
        """Return how many calls and messages of this rank have begun, refused ones included."""
        return 0 if self._life.closed else bindings.comm_op_count(self._comm)

    def noted(self, launch: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``launch`` so that it notes `count` first; what is native does so by itself."""
        native = isinstance(launch, load.fastcall.Plan)
        comes = self._dispatcher.comes

        def start() -> Any:
            comes()
            return launch()

        return launch if native else start

    def refused(self, what: str, error: BaseException, before: int | None = None) -> None:
        """See to a call that ``error`` ended, wherever it had got to; called by its method.

        A call that was unfinished breaks the communicator. One that had not begun takes its place
        among the calls all the same: other ranks may have made theirs, and whatever this rank
        calls next must not be taken for it. Ranks that were refused alike stay in step. One that
        had ended has its place: a signal handler runs behind the native call, and may raise there.
        Nobody knows what memory a bad argument was meant to be in: a refused call counts on this
        communicator and on those that follow it.

        Args:
            what: Name of the method.
            error: What it raises.
            before: `count` when the call came in; by default what native code noted then: the
                dispatcher, what it made, or a bound plan.

        Raises:
            BusyError: In place of what an import says that is under way already.
        """
        if self._begun(error, before):
            return
        for order in (self, *self.followers):
            number = order._side.refuse()
            if number is not None:
                order._failure.refuse(what, error, number)

    def refused_messages(
        self, what: str, error: BaseException, messages: Directions, before: int | None = None
    ) -> None:
        """See to messages in the same way: those that had not begun take their places.

        Args:
            what: Name of the method.
            error: What it raises.
            messages: Of each message the peer, and whether it is sent. One whose peer is no rank
                might have been meant for any.
            before: As in `refused`.
        """
        if self._begun(error, before):
            return
        ends = []
        for peer, sending in messages:
            try:
                number = operator.index(peer)
            except TypeError:
                number = -1
            size = self._size
            peers = [number] if 0 <= number < size else range(size)
            try:
                self._arenas.require(peers)
            except PycollError as unmapped:
                self._failure.fail(unmapped)
            ends += [(peer, sending) for peer in peers]
        self._refused.update(ends)
        for order in (self, *self.followers):
            placed = [order._side.refuse_message(*end) for end in ends]
            if any(placed):
                order._failure.refuse(what, error, 0)

    def _begun(self, error: BaseException, before: int | None) -> bool:
        """End a call that was unfinished; tell whether it needs no place: it had its own."""
        if self._life.over:
            return True
        if amid(self._comm):
            if isinstance(error, ImportError):
                raise BusyError(
                    "a call of this thread is under way on this communicator, and what calls need "
                    "is still being imported; let the signal handler only note what happened"
                ) from None
            return True
        self._waits.interrupted(error)
        if TOLD in vars(error) or isinstance(error, BrokenError | PeerLostError | MismatchError):
            return True  # all ranks know: what broke is the GPU's communicator, or this
        if isinstance(error, BusyError):
            return True
        before = bindings.comm_op_count_before(self._comm) if before is None else before
        return self.count() != before

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Make calls that a call of the user's needs before it begins itself.

        Once they have ended well, on all ranks, they count no more in `count`: the user's call may
        still be refused.
        """
        before = self.count()
        yield
        bindings.comm_uncount_ops(self._comm, before)

    @contextlib.contextmanager
    def begins(self, what: str) -> Iterator[None]:
        """Do what `refused` does for an exception out of the block."""
        self._dispatcher.comes()  # the event of the call has the line that the user is at
        before = self.count()
        try:
            yield
        except BaseException as error:
            self.refused(what, error, before)
            raise

    @contextlib.contextmanager
    def entirely(self, what: str, before: int | None = None) -> Iterator[None]:
        """Break the communicator, with what follows it, if what is done inside stops half way.

        A call of several messages that ends between two of them would leave this rank behind by
        the rest, and the next call would meet what others still send for this one. Where its arrays
        are on a GPU, so are its messages.

        Args:
            what: The call, as the others are told of it.
            before: `count` when it came in, if nothing of it was done by then: as long as it has
                taken none it is only refused.
        """
        try:
            yield
        except BaseException as error:
            if before is None or self.count() != before:
                for order in (self, *self.followers):
                    order._give_up(error, what)
            raise

    def _give_up(self, error: BaseException, what: str) -> None:
        if self._failure.error is None and not bindings.comm_broken(self._comm):
            self._failure.give_up(error, what)
