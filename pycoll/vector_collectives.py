"""The collectives of a Communicator whose blocks are of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycoll.errors import UsageError

if TYPE_CHECKING:
    from pycoll.collectives import Collectives
    from pycoll.point_to_point import PointToPoint
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.options import CallOptions


class VectorCollectives:
    """What runs them for one communicator.

    Where all ranks know all counts it is a verified algorithm; else every block goes straight to
    where it belongs.
    """

    def __init__(self, engine: Engine, collectives: Collectives, messages: PointToPoint) -> None:
        self._engine = engine
        self._collectives = collectives
        self._messages = messages

    def by_counts(self, name: str, x: Any, out: Any, options: CallOptions, async_op: bool) -> Any:
        """Run `allgatherv` or `reduce_scatterv`; ``name`` is that of the form without counts."""
        if options.counts is None:  # which would be the collective without counts
            size = self._engine.world.size
            raise UsageError(f"{name}v: counts is None, want {size} numbers of elements")
        with self._engine.order.begins(f"{name}v"):
            return self._collectives.launch.run(name, x, out, options, async_op)

    def alltoallv(
        self,
        x: Any,
        send_counts: Sequence[int],
        out: Any,
        recv_counts: Sequence[int],
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """Move a part from every rank to every rank."""
        with self._engine.order.begins("alltoallv"):
            from pycoll.runtime.p2p import batch

            self._engine.life.require_usable("alltoallv")
            transfers = self._messages.transfers
            found = batch.alltoallv(transfers.place, x, send_counts, out, recv_counts)
            return transfers.together("alltoallv", found, None, timeout, async_op)

    def rooted(self, name: str, *call: Any) -> Any:
        """Run `gatherv` or `scatterv`; see `within` for what it takes."""
        with self._engine.order.begins(name):
            return self.within(name, name, *call)

    def within(
        self,
        name: str,
        what: str,
        x: Any,
        counts: Sequence[int] | None,
        out: Any,
        root: int,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """Run it within ``what``, a call that has begun."""
        from pycoll.runtime.p2p import batch

        self._engine.life.require_usable(what)
        look = batch.gatherv if name == "gatherv" else batch.scatterv
        transfers = self._messages.transfers
        empty = self._collectives.launch.empty
        found = look(transfers.place, x, counts, out, root, what, empty)
        return transfers.together(what, found, root, timeout, async_op)
