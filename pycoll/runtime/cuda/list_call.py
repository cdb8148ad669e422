"""DeviceListCall: a collective of a list of arrays on a GPU; small ones share a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycoll.dtypes import UINT8, ReduceOp
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.native import device_comm
from pycoll.runtime.plan import buckets
from pycoll.runtime.plan.buckets import Bucket, Pair
from pycoll.runtime.plan.persistent import Plan
from pycoll.runtime.plan.request import rank_of

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.cuda.device_comm import DeviceComm
    from pycoll.runtime.cuda.streams import Part, Streams
    from pycoll.runtime.cuda.work import StreamWork
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.request import CollectiveKind


class _Packed:
    """Messages that lie in a buffer, and the copies into it and out of it."""

    def __init__(self) -> None:
        self.buffers: list[ArrayView] = []
        self._into: list[tuple[int, int, int]] = []
        self._out_of: list[tuple[int, int, int]] = []

    def add(self, message: Bucket, buffer: ArrayView) -> int:
        """Plan the copies of a message; return where it lies."""
        self.buffers.append(buffer)
        place = buffer.address
        for x, out in message.pairs:
            if x.nbytes:
                self._into.append((place, x.address, x.nbytes))
                self._out_of.append((out.address, place, x.nbytes))
            place += x.nbytes
        return buffer.address

    def pack(self, dc: DeviceComm, stream: int) -> None:
        """Enqueue the copies into buffers."""
        for copy in self._into:
            bindings_cuda.copy(dc.device, *copy, stream)

    def unpack(self, dc: DeviceComm, stream: int) -> None:
        """Enqueue the copies of the results."""
        for copy in self._out_of:
            bindings_cuda.copy(dc.device, *copy, stream)


class DeviceListCall:
    """What a collective whose result has the form of its input does with arrays on a GPU."""

    def __init__(
        self,
        streams: Streams,
        kind: CollectiveKind,
        pairs: Sequence[Pair],
        op: ReduceOp,
        options: CallOptions,
    ) -> None:
        self._streams, self._kind, self._options = streams, kind, options
        self._op = op if kind.collective.reduces else ReduceOp.SUM
        self._root = rank_of(options.root, streams.host.engine.world.size, f"{kind.name}: root")
        self._pairs = pairs
        self._views = [view for pair in pairs for view in pair]

    def run(self) -> list[Any]:
        """Enqueue it and return the results."""
        dc, parts, packed, stream = self._parts()
        with dc.engine.order.entirely(self._text()):
            self._streams.enqueue(
                dc, parts, stream, self._options.timeout, packed.pack, packed.unpack
            )
        self._streams.hold(dc, [*self._views, *packed.buffers], stream)
        self._streams.keep(dc, packed.buffers, stream)
        return self._results()

    def submit(self) -> StreamWork:
        """Enqueue it beside its caller."""
        dc, parts, packed, stream = self._parts()
        self._streams.keep(dc, packed.buffers, stream)
        with dc.engine.order.entirely(self._text()):
            return self._streams.begin(
                dc,
                parts,
                stream,
                self._options.timeout,
                self._views,
                self._results(),
                packed.pack,
                packed.unpack,
                packed.buffers,
            )

    def bind(self) -> Plan:
        """Bind it to its arrays and to buffers of its own."""
        dc, parts, packed, _ = self._parts()
        who = self._kind.name

        def start() -> list[Any]:
            stream = self._streams.stream(self._views, who)
            with dc.engine.order.entirely(self._text()):
                self._streams.enqueue(
                    dc, parts, stream, self._options.timeout, packed.pack, packed.unpack
                )
            self._streams.keep(dc, packed.buffers, stream)
            return self._results()

        first = parts[0][0]
        pins = (self._streams.host.works.owner(), self._pairs, parts, packed)
        timeout = self._options.timeout
        by, transport = first.algorithm, first.transport
        shape = device_comm.device_plan_shape(first.handle)._replace(direct=False)
        return Plan(
            dc.engine, start, self._results(), first.text, by, transport, timeout, pins, shape
        )

    def _parts(self) -> tuple[DeviceComm, list[Part], _Packed, int]:
        streams, options = self._streams, self._options
        stream = streams.stream(self._views, self._kind.name)
        number = self._views[0].device.number
        parts: list[Part] = []
        packed = _Packed()
        dc = None
        for message in buckets.buckets(self._pairs):
            call = message.call(self._kind.name, self._op, self._root, self._options.fixed)
            dc, plan = streams.find(call, options.algorithm, options.timeout, number, stream)
            if len(message.pairs) == 1:
                x, out = message.pairs[0]
                parts.append((plan, x.address, out.address))
                continue
            buffer = streams.new(message.pairs[0][0], (max(1, message.nbytes),), UINT8)
            place = packed.add(message, buffer)
            parts.append((plan, place, place))
        assert dc is not None  # an empty list lies in the host's memory
        return dc, parts, packed, stream

    def _results(self) -> list[Any]:
        return [out.owner for _, out in self._pairs]

    def _text(self) -> str:
        return f"{self._kind.name}({len(self._pairs)} arrays)"
