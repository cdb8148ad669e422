"""ListCall: a collective of a list of arrays, which is one call of few messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.dtypes import ReduceOp
from pycoll.runtime.plan import buckets
from pycoll.runtime.plan.buckets import Bucket, Packing, Pair
from pycoll.runtime.plan.persistent import Plan
from pycoll.runtime.plan.request import rank_of

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.buckets import Buffers
    from pycoll.runtime.plan.cache import BoundPlan, PlanCache
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.request import CollectiveKind
    from pycoll.runtime.work import Work, Works


class Lists(NamedTuple):
    """What the list calls of one communicator have in common."""

    engine: Engine
    works: Works
    plans: PlanCache
    buffers: Buffers


class ListCall:
    """What a collective whose result has the form of its input does with a list of arrays."""

    def __init__(
        self,
        host: Lists,
        kind: CollectiveKind,
        pairs: Sequence[Pair],
        op: ReduceOp,
        options: CallOptions,
    ) -> None:
        self._host, self._kind, self._options = host, kind, options
        self._op = op if kind.collective.reduces else ReduceOp.SUM
        self._root = rank_of(options.root, host.engine.world.size, f"{kind.name}: root")
        self._pairs = pairs

    def run(self) -> list[Any]:
        """Run it and return the results."""
        host, timeout = self._host, self._options.timeout
        plans = list(self._plans())
        with host.engine.order.entirely(self._text(), host.engine.order.count()):
            for message, plan in plans:
                if len(message.pairs) == 1:
                    x, out = message.pairs[0]
                    host.engine.waits.call(plan.handle, x.address, out.address, timeout)
                    continue
                packing = Packing(message, host.buffers.shared(message.nbytes))
                packing.pack()
                host.engine.waits.call(plan.handle, packing.address, packing.address, timeout)
                packing.unpack()
        return self._results()

    def submit(self) -> Work:
        """Queue it."""
        host, text = self._host, f"{self._kind.name}([])"
        parts, packings = [], []
        for message, plan in self._plans():
            text = plan.text
            if len(message.pairs) == 1:
                x, out = message.pairs[0]
                parts.append((plan, x.address, out.address))
                continue
            packing = Packing(message, host.buffers.own(message.nbytes))
            packing.pack()
            packings.append(packing)
            parts.append((plan, packing.address, packing.address))

        def finish() -> list[Any]:
            for packing in packings:
                packing.unpack()
            return self._results()

        with host.engine.order.entirely(self._text(), host.engine.order.count()):
            return host.works.work(text, self._options.timeout, self._pairs).start(parts, finish)

    def bind(self) -> Plan:
        """Bind it to its arrays."""
        plans = [plan for _, plan in self._plans()]
        text, by, transport = self._text(), "none", "shm"
        if plans:
            text, by, transport = plans[0].text, plans[0].algorithm, plans[0].transport
        host, pins = self._host, (self._host.works.owner(), self._pairs, plans)
        return Plan(host.engine, self.run, None, text, by, transport, self._options.timeout, pins)

    def _plans(self) -> Iterator[tuple[Bucket, BoundPlan]]:
        for message in buckets.buckets(self._pairs):
            options = self._options
            call = message.call(self._kind.name, self._op, self._root, options.fixed)
            yield message, self._host.plans.find(call, options.algorithm, options.timeout)

    def _results(self) -> list[Any]:
        return [out.owner for _, out in self._pairs]

    def _text(self) -> str:
        return f"{self._kind.name}({len(self._pairs)} arrays)"
