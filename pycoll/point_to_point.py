"""Messages between two ranks of a Communicator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from pycoll.collectives import Collectives

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycoll.runtime.p2p.batch import Pairs
    from pycoll.runtime.p2p.transfers import Transfers

_UNSERVED = object()  #: what a port gives for what it does not serve


class PointToPoint(Collectives):
    """What two ranks do together, whatever the others do meanwhile.

    Messages from one rank to another arrive in the order in which they were sent; there is no
    order with anything else, and there are no tags. Both ends give arrays of one length and dtype.
    """

    def send(self, x: Any, to: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send an array; return once it may be written again.

        Args:
            x: The array.
            to: The rank that receives it.
            async_op: Return a Work.
            timeout: Seconds.
        """
        try:
            if timeout is None and not async_op:
                if self._sender(x, to) is None:
                    return None
            else:
                self._comes()
            return self._transfers.one(x, to, True, async_op, timeout)
        except BaseException as error:
            self._engine.order.refused_messages("send", error, [(to, True)])
            raise

    def recv(self, x: Any, frm: int, async_op: bool = False, timeout: float | None = None) -> Any:
        """Receive into an array, and return it.

        Args:
            x: The array.
            frm: The rank that sends it.
            async_op: Return a Work.
            timeout: Seconds.
        """
        try:
            if timeout is None and not async_op:
                if self._receiver(x, frm) is x:
                    return x
            else:
                self._comes()
            return self._transfers.one(x, frm, False, async_op, timeout)
        except BaseException as error:
            self._engine.order.refused_messages("recv", error, [(frm, False)])
            raise

    def exchange(
        self,
        sends: Pairs = (),
        recvs: Pairs = (),
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send and receive messages that all move at once, in any order.

        Args:
            sends: Pairs of an array and the rank that receives it.
            recvs: Pairs of an array and the rank that sends it.
            async_op: Return a Work.
            timeout: Seconds.

        Returns:
            The arrays of ``recvs``.
        """
        before = self._engine.order.count()
        try:
            return self._transfers.exchange(sends, recvs, async_op, timeout)
        except BaseException as error:
            lanes = [*_lanes(sends, True), *_lanes(recvs, False)]
            self._engine.order.refused_messages("exchange", error, lanes, before)
            raise

    @cached_property
    def _transfers(self) -> Transfers:
        from pycoll.runtime.p2p.transfers import Transfers

        return Transfers(self._engine, self)

    @cached_property
    def _sender(self) -> Callable[[Any, int], Any]:
        return self._port(receives=False)

    @cached_property
    def _receiver(self) -> Callable[[Any, int], Any]:
        return self._port(receives=True)

    def _port(self, receives: bool) -> Callable[[Any, int], Any]:
        """Return what transfers an array without Python's help, or says that it does not."""
        self._comes()  # before anything that raises
        # Of a closed communicator no port knows: what it would point to has been freed.
        self._engine.life.require_usable("recv" if receives else "send")
        if self._engine.world.remote:  # a link may have to be made first
            comes = self._comes  # and not this communicator, which holds what is returned

            def unserved(x: Any, peer: Any) -> Any:
                comes()
                return _UNSERVED

            return unserved
        pairwise = self._transfers.pairwise
        return pairwise.port(receives=receives, otherwise=lambda args, kwargs: _UNSERVED)


def _lanes(pairs: Any, sending: bool) -> list[tuple[Any, bool]]:
    """Return the peers of messages that were refused; None: it is not known which."""
    if not isinstance(pairs, list | tuple):  # a generator, which is used up
        return [(None, sending)]
    peers = [
        pair[1] if isinstance(pair, list | tuple) and len(pair) == 2 else None for pair in pairs
    ]
    return [(peer, sending) for peer in peers]
