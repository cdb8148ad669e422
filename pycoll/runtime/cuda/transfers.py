"""DeviceTransfers: messages between two ranks whose arrays lie in a GPU's memory.

They are enqueued as collectives are, and no Program sends them: one kernel of their own moves all
messages of a call, in whatever order the other ranks send and receive theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycoll.errors import UsageError
from pycoll.runtime.cuda import nvtx
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.native import device_comm
from pycoll.runtime.p2p.pairwise import PairwiseKinds

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.cuda.device_comm import DeviceComm
    from pycoll.runtime.cuda.streams import Streams
    from pycoll.runtime.native.bindings import P2POp
    from pycoll.runtime.p2p.batch import Batch

#: A copy on the GPU: to, from, bytes.
Copy = tuple[int, int, int]


class DeviceTransfers:
    """Those of one communicator."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._kinds: PairwiseKinds | None = None

    def messages(self, found: Batch, text: str, timeout: float | None, async_op: bool) -> Any:
        """Send and receive messages between two ranks."""
        who, streams = text.partition("(")[0], self._streams
        if streams.dc is None:
            raise UsageError(
                f"{who}: this communicator has no GPU yet, and not all of its ranks take part in "
                "this; call comm.cuda() on all ranks first"
            )
        copies, others = _apart(found.messages, streams.host.engine.world.rank, who)
        if len(others) > device_comm.MOST_TRANSFERS:
            raise UsageError(
                f"{who}: {len(others)} messages at once on a GPU, want at most "
                f"{device_comm.MOST_TRANSFERS}; make several calls, or use alltoallv"
            )
        dc = streams.open(_number(found.views))
        _require(dc, others, who, timeout)
        stream = streams.stream(found.views, who)

        def enqueue(stream: int) -> None:
            dc.transfer(others, stream, timeout)

        return self._begin(dc, text, found, copies, enqueue, stream, timeout, async_op)

    def call(
        self, what: str, found: Batch, root: int | None, timeout: float | None, async_op: bool
    ) -> Any:
        """Run a batch as one call of all ranks."""
        streams = self._streams
        copies, others = _apart(found.messages, streams.host.engine.world.rank, what)
        stream = streams.stream(found.views, what)
        dc = streams.opened_for(_number(found.views), stream, timeout, what)
        _require(dc, others, what, timeout)
        if self._kinds is None:
            self._kinds = PairwiseKinds(dc.engine)
        kind, order = self._kinds.kind(what, found.dtype, root), dc.engine.order

        def enqueue(stream: int) -> None:
            # Where there are many ranks it is several kernels.
            with order.entirely(kind.text, order.count()):
                dc.transfer(others, stream, timeout, kind)

        return self._begin(dc, kind.text, found, copies, enqueue, stream, timeout, async_op)

    def _begin(
        self,
        dc: DeviceComm,
        text: str,
        found: Batch,
        copies: Sequence[Copy],
        enqueue: Callable[[int], None],
        stream: int,
        timeout: float | None,
        async_op: bool,
    ) -> Any:
        """Enqueue a batch, within a range for profilers; return its result, or its Work."""

        def begin(stream: int) -> None:
            ranges = nvtx.ranges()
            if ranges is not None:
                nbytes = sum(message.nbytes for message in found.messages)
                ranges.push(f"pycoll {text}, {nbytes} B".encode())
            try:
                if copies:
                    with dc.in_order(stream):
                        for to, source, nbytes in copies:
                            bindings_cuda.copy(dc.device, to, source, nbytes, stream)
                enqueue(stream)
            finally:
                if ranges is not None:
                    ranges.pop()

        if async_op:
            views, result = found.views, found.result
            return self._streams.beside(dc, text, begin, stream, timeout, views, result)
        begin(stream)
        self._streams.hold(dc, found.views, stream)
        return found.result


def _apart(messages: Sequence[P2POp], rank: int, who: str) -> tuple[list[Copy], list[P2POp]]:
    """Return the copies that messages of a rank to itself are, and the other messages.

    Raises:
        UsageError: One of its own has no other end: a GPU keeps no message until it is received.
    """
    sends = [m for m in messages if m.peer == rank and m.sending]
    recvs = [m for m in messages if m.peer == rank and not m.sending]
    if len(sends) != len(recvs):
        raise UsageError(
            f"{who}: rank {rank} sends itself {len(sends)} messages and receives {len(recvs)}; on "
            "a GPU both ends are in one call: exchange([(x, rank)], [(out, rank)])"
        )
    for sent, received in zip(sends, recvs, strict=True):
        if (sent.nbytes, sent.dtype) != (received.nbytes, received.dtype):
            raise UsageError(
                f"{who}: rank {rank} sends itself {sent.nbytes} bytes and receives "
                f"{received.nbytes}, or of another dtype"
            )
    copies = [
        (received.address, sent.address, sent.nbytes)
        for sent, received in zip(sends, recvs, strict=True)
        if sent.nbytes and sent.address != received.address
    ]
    return copies, [m for m in messages if m.peer != rank]


def _require(dc: DeviceComm, messages: Sequence[P2POp], who: str, timeout: float | None) -> None:
    """Return once messages to all these ranks can go."""
    dc.engine.life.require_usable(who)
    dc.engine.links.require({message.peer for message in messages}, timeout)


def _number(views: Sequence[ArrayView]) -> int | None:
    """Return the number of the device; None: of empty arrays nobody says where they are."""
    return next((view.device.number for view in views if view.count), None)
