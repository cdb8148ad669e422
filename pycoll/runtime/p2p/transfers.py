"""Transfers: from a user's arrays to started messages between ranks, for one communicator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from pycoll.arguments import check_timeout
from pycoll.arrays.torch import pointers
from pycoll.arrays.view import HOST
from pycoll.errors import UsageError, quoted
from pycoll.runtime.p2p import batch
from pycoll.runtime.p2p.batch import Batch, RankOf
from pycoll.runtime.p2p.pairwise import Pairwise

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine


def _listed(pairs: Iterable[tuple[Any, int]], name: str) -> list[tuple[Any, int]]:
    try:
        return list(pairs)  # they may come from a generator
    except TypeError:
        raise UsageError(
            f"exchange: {name} is {quoted(pairs)}, want a sequence of pairs of an array and a rank"
        ) from None


class OnDevice(Protocol):
    """What moves messages whose arrays lie in a GPU's memory."""

    def messages(self, found: Batch, text: str, timeout: float | None, async_op: bool) -> Any:
        """Send and receive messages between two ranks."""

    def call(
        self, what: str, found: Batch, root: int | None, timeout: float | None, async_op: bool
    ) -> Any:
        """Run a batch as one call of all ranks."""


class Transfers:
    """The transfers of one communicator, singly and as calls of all ranks.

    Args:
        engine: The communicator's.
        owner: The communicator.
        on_device: Returns what serves arrays in a GPU's memory.
    """

    def __init__(self, engine: Engine, owner: Any, on_device: Callable[[], OnDevice]) -> None:
        self.pairwise = Pairwise(engine)
        self._on_device = on_device
        self.place = RankOf(engine.world.rank, engine.world.size)
        self._engine = engine
        self._owner = weakref.ref(owner)  # weak: the communicator holds this

    def again(self, sends: tuple[Any, ...], recvs: tuple[Any, ...]) -> int | None:
        """Move messages of tensors that need no second look; return the code.

        The per-call path of torch, with the communicator's timeout. None sends the caller to the
        others here, which find the reason. The caller holds the tensors until the end.
        """
        ends: list[Any] = []
        for pairs, receives in ((sends, False), (recvs, True)):
            for pair in pairs:
                if pair.__class__ is not tuple or len(pair) != 2:
                    return None
                found = pointers(pair[0], None, alike=False)
                if found is None:
                    return None
                start, _, nbytes, _, code = found
                ends += (receives, start, nbytes, code, pair[1])
        done: int | None = self._engine.dispatcher.transfers(*ends) if ends else None
        return done

    def one(self, x: Any, peer: Any, sending: bool, async_op: bool, timeout: float | None) -> Any:
        """Send or receive one message; see `Communicator.send` and `recv`."""
        who = "send" if sending else "recv"
        self._engine.life.require_usable(who)
        found = batch.one(self.place, x, peer, sending, who)
        return self._transfer(found, f"{who}({found.dtype.name}, rank {peer})", async_op, timeout)

    def exchange(
        self,
        sends: Iterable[tuple[Any, int]],
        recvs: Iterable[tuple[Any, int]],
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """Send and receive messages in any order; see `Communicator.exchange`."""
        self._engine.life.require_usable("exchange")
        sends, recvs = _listed(sends, "sends"), _listed(recvs, "recvs")
        found = batch.exchange(self.place, sends, recvs)
        text = f"exchange({len(sends)} sent, {len(recvs)} received)"
        return self._transfer(found, text, async_op, timeout)

    def together(
        self, what: str, found: Batch, root: int | None, timeout: float | None, async_op: bool
    ) -> Any:
        """Run a batch as one call among those of the communicator."""
        timeout = check_timeout(what, timeout)
        if found.device != HOST:
            return self._on_device().call(what, found, root, timeout, async_op)
        self._require(found, timeout)
        if async_op:
            pins = (self._owner(), found.views)
            return self.pairwise.submit(
                what, found.dtype, root, found.messages, timeout, pins, lambda: found.result
            )
        self.pairwise.call(what, found.dtype, root, found.messages, timeout)
        return found.result

    def _transfer(self, found: Batch, text: str, async_op: bool, timeout: float | None) -> Any:
        timeout = check_timeout(text.partition("(")[0], timeout)
        if found.device != HOST:
            return self._on_device().messages(found, text, timeout, async_op)
        self._require(found, timeout)
        if async_op:
            pins = (self._owner(), found.views)
            return self.pairwise.post(found.messages, timeout, pins, text, lambda: found.result)
        self.pairwise.transfer(found.messages, timeout)
        return found.result

    def _require(self, found: Batch, timeout: float | None) -> None:
        self._engine.links.require({message.peer for message in found.messages}, timeout)
