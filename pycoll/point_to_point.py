"""Messages between two ranks of a Communicator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterable

    from pycoll.collectives import Collectives
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.p2p.transfers import Transfers


class PointToPoint:
    """What sends and receives of a communicator fall back to; whatever holds `call` holds it."""

    def __init__(self, engine: Engine, owner: weakref.ref[Any], collectives: Collectives) -> None:
        self._engine = engine
        self._owner = owner
        self._collectives = collectives

    def call(self, name: str, receives: bool) -> Callable[..., Any]:
        """Return what serves ``send`` or ``recv``: it takes (x, peer, async_op, timeout)."""
        what, message = (name, not receives), self._engine.dispatcher.message
        made: Callable[..., Any] = message(what, receives, self._serve, self._refused)
        return made

    @cached_property
    def transfers(self) -> Transfers:
        """What moves the messages."""
        # Loaded at the first message: `init` shall be quick.
        from pycoll.runtime.p2p.transfers import Transfers

        return Transfers(
            self._engine, self._owner(), lambda: self._collectives.launch.cuda.transfers
        )

    def together(self, *call: Any) -> Any:
        """Run messages that are one call of all ranks; see `Transfers.together`."""
        return self.transfers.together(*call)

    def exchange(self) -> Callable[..., Any]:
        """Return what serves ``exchange``: it takes (sends, recvs, async_op, timeout)."""
        exchange = self._engine.dispatcher.exchange
        made: Callable[..., Any] = exchange("exchange", self._serve_all, self._refused_all)
        return made

    def _serve(
        self,
        what: tuple[str, bool],
        code: int | None,
        x: Any,
        peer: Any,
        async_op: Any,
        timeout: Any,
    ) -> Any:
        """Move a message, or carry one to its end that is under way and gave ``code``."""
        _, sending = what
        if code is None and timeout is None and async_op is False:
            pairs = ((x, peer),)
            code = self.transfers.again(pairs, ()) if sending else self.transfers.again((), pairs)
        if code is None:
            return self.transfers.one(x, peer, sending, async_op, timeout)
        self._engine.waits.finish_transfer(code, self._engine.timeout)
        return None if sending else x

    def _serve_all(
        self,
        what: str,
        code: int | None,
        sends: Iterable[tuple[Any, int]],
        recvs: Iterable[tuple[Any, int]],
        async_op: Any,
        timeout: Any,
    ) -> Any:
        """Move messages, or carry those to their end that are under way and gave ``code``."""
        if code is not None:
            self._engine.waits.finish_transfer(code, self._engine.timeout)
            return None  # native code has the arrays
        if timeout is not None or async_op is not False or not (_listed(sends) and _listed(recvs)):
            return self.transfers.exchange(sends, recvs, async_op, timeout)
        sent, received = tuple(sends), tuple(recvs)  # the lists may change meanwhile
        code = self.transfers.again(sent, received)
        if code is None:
            return self.transfers.exchange(sends, recvs, async_op, timeout)
        self._engine.waits.finish_transfer(code, self._engine.timeout)
        return [x for x, _ in received]

    def _refused(
        self, what: tuple[str, bool], error: BaseException, x: Any, peer: Any, *call: Any
    ) -> None:
        name, sending = what
        self._engine.order.refused_messages(name, error, [(peer, sending)])

    def _refused_all(
        self, what: str, error: BaseException, sends: Any, recvs: Any, *call: Any
    ) -> None:
        directions = [*_directions(sends, True), *_directions(recvs, False)]
        self._engine.order.refused_messages(what, error, directions)


def _listed(pairs: Any) -> bool:
    return pairs.__class__ is list or pairs.__class__ is tuple


def _directions(pairs: Any, sending: bool) -> list[tuple[Any, bool]]:
    """Return the peers of messages that were refused; None: it is not known which."""
    if not isinstance(pairs, list | tuple):  # a generator, which is used up
        return [(None, sending)]
    peers = [
        pair[1] if isinstance(pair, list | tuple) and len(pair) == 2 else None for pair in pairs
    ]
    return [(peer, sending) for peer in peers]
