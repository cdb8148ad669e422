"""Cuda: runs plans on arrays in a GPU's memory, by kernels on the streams of their caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll.arrays.dtype import dtype_of
from pycoll.arrays.interface import INTERFACE
from pycoll.dtypes import BFLOAT16
from pycoll.errors import UsageError
from pycoll.runtime.cuda import reach
from pycoll.runtime.cuda.device_comm import DeviceComm, Gpu
from pycoll.runtime.cuda.fast_path import FastPath
from pycoll.runtime.cuda.list_call import DeviceListCall
from pycoll.runtime.cuda.streams import Streams
from pycoll.runtime.cuda.transfers import DeviceTransfers
from pycoll.runtime.cuda.work import StreamWork
from pycoll.runtime.host.heap import lengths, numpy_dtype
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.native import device_comm
from pycoll.runtime.plan.cache import BoundPlan
from pycoll.runtime.plan.options import CallOptions
from pycoll.runtime.plan.persistent import Plan

if TYPE_CHECKING:
    from pycoll.cost import Explanation
    from pycoll.dtypes import ReduceOp
    from pycoll.runtime.host.executor import HostExecutor
    from pycoll.runtime.plan.buckets import Pair
    from pycoll.runtime.plan.request import CollectiveKind, Request


class CudaExecutor:
    """The executor of arrays in the memory of one GPU."""

    def __init__(self, host: HostExecutor) -> None:
        self._host = host
        self.streams = Streams(host)
        self.transfers = DeviceTransfers(self.streams)
        self._quick = FastPath()

    # The dc.

    def describe(self, number: int | None, timeout: float | None) -> Gpu:
        """Return what the communicator has on its GPU."""
        return self.streams.open(number, timeout).gpu

    def empty(self, shape: int | Iterable[int], dtype: Any) -> Any:
        """Return an array that all ranks reach, whose elements have no set value."""
        name = str(dtype).removeprefix("torch.")
        kind = BFLOAT16 if name == "bfloat16" else dtype_of(numpy_dtype(dtype), "empty")
        return self.streams.open().device_heap.empty(lengths(shape), kind)

    def explain(self, collective: str, nbytes: int, order: str | None) -> Explanation:
        """Return which algorithm runs, and why."""
        if self.streams.dc is None:
            raise UsageError(
                "explain: this communicator has no GPU yet; call comm.cuda() on all ranks"
            )
        dc = self.streams.dc
        found = dc.selection.explain(collective, nbytes, order)
        ways = reach.told(dc.world.rank, dc.reach, dc.lacks)
        return replace(found, where=(*found.where, *ways))

    # Calls.

    def again(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, options: CallOptions
    ) -> tuple[Any] | None:
        """Enqueue a call that is like an earlier one; None: it has to be looked at.

        A stream that the user has said is left to `run`, for then allocators have to be told.
        """
        found = self._quick.find(kind.collective.name, x, out, op, options)
        dc = self.streams.dc
        if found is None or dc is None or found.spot.number != dc.device:
            return None
        family = found.spot.family
        if self.streams.chosen is None:
            stream = family.stream(dc.device, found.spot.given)
        elif family is INTERFACE:
            stream = self.streams.chosen
        else:
            return None
        self.streams.enqueue(dc, [(found.plan, found.x, found.out)], stream, None)
        owns = dc.device_heap.owns
        if family is INTERFACE and not (owns(x) and (out is None or owns(out))):
            dc.held.add((x, out), stream)
        return (found.result,)

    def run(self, request: Request, options: CallOptions) -> Any:
        """Enqueue a call, and return its result, which is there when the stream has come to it."""
        stream = self.streams.stream(request.views, request.call.collective)
        dc, plan = self._ready(request, options, stream)
        self.streams.enqueue(
            dc, [(plan, *request.addresses)], stream, options.timeout, _copying(request)
        )
        self.streams.hold(dc, request.views, stream)
        self._keep(dc, request, stream)
        if options.repeats:
            self._quick.learn(options, request, plan)
        return request.result

    def submit(self, request: Request, options: CallOptions) -> StreamWork:
        """Enqueue a call on the communicator's own stream, behind what is enqueued so far."""
        stream = self.streams.stream(request.views, request.call.collective)
        dc, plan = self._ready(request, options, stream)
        parts = [(plan, *request.addresses)]
        work = self.streams.begin(
            dc, parts, stream, options.timeout, request.views, request.result, _copying(request)
        )
        self._keep(dc, request, stream)
        return work

    def bind(self, request: Request, options: CallOptions) -> Plan:
        """Bind a call to its arrays; each run is enqueued on the stream that is current then."""
        views, who = request.views, request.call.collective
        dc, plan = self._ready(request, options, self.streams.stream(views, who))
        part, copying = (plan, *request.addresses), _copying(request)

        def start() -> Any:
            stream = self.streams.stream(views, who)
            self.streams.enqueue(dc, [part], stream, options.timeout, copying)
            self._keep(dc, request, stream)
            return request.result

        mapped = all(dc.device_heap.holds(array.address, array.nbytes) for array in views)
        shape = device_comm.device_plan_shape(plan.handle)
        pins = (self._host.works.owner(), request, plan)
        return Plan(
            dc.engine,
            start,
            request.result,
            plan.text,
            plan.direct if mapped and plan.direct else plan.algorithm,
            plan.transport,
            options.timeout,
            pins,
            shape._replace(direct=mapped and shape.direct),
        )

    def listed(
        self, kind: CollectiveKind, pairs: Sequence[Pair], op: ReduceOp, options: CallOptions
    ) -> DeviceListCall:
        """Return a call of a list of arrays."""
        return DeviceListCall(self.streams, kind, pairs, op, options)

    def _keep(self, dc: DeviceComm, request: Request, stream: int) -> None:
        if request.copy is not None:
            self.streams.keep(dc, request.copy[1:], stream)

    def _ready(
        self, request: Request, options: CallOptions, stream: int
    ) -> tuple[DeviceComm, BoundPlan]:
        number = request.device.number
        return self.streams.find(request.call, options.algorithm, options.timeout, number, stream)


def _copying(request: Request) -> Callable[[DeviceComm, int], None] | None:
    if request.copy is None:
        return None
    x, copy = request.copy

    def enqueue(dc: DeviceComm, stream: int) -> None:
        if x.nbytes:
            bindings_cuda.copy(dc.device, copy.address, x.address, x.nbytes, stream)

    return enqueue
