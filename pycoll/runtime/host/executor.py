"""Host: runs plans on arrays in the host's memory, by the engine's threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll.arrays.torch import pointers
from pycoll.runtime.host.dispatchers import Dispatchers
from pycoll.runtime.host.list_call import ListCall, Lists
from pycoll.runtime.native import load
from pycoll.runtime.plan.buckets import Buffers
from pycoll.runtime.plan.cache import BoundPlan, PlanCache
from pycoll.runtime.plan.call import BARRIER
from pycoll.runtime.plan.geometry import geometry
from pycoll.runtime.plan.persistent import Plan
from pycoll.runtime.plan.request import NUMBERS

if TYPE_CHECKING:
    from pycoll.dtypes import ReduceOp
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.buckets import Pair
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.request import CollectiveKind, Request
    from pycoll.runtime.work import Work, Works


class HostExecutor:
    """The executor of arrays in the host's memory."""

    def __init__(self, engine: Engine, works: Works) -> None:
        self.engine = engine
        self.works = works
        self.dispatchers = Dispatchers(engine)
        self.plans = PlanCache(engine, self.dispatchers)
        self._lists = Lists(engine, works, self.plans, Buffers(engine.heap))

    def again(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, options: CallOptions
    ) -> tuple[Any] | None:
        """Run the plan that serves these arrays, if there is one."""
        dispatcher, number = self.dispatchers.of(options.algorithm), NUMBERS[kind.collective.name]
        done = None
        if options.op.__class__ is not str:  # else `Communicator` has tried this already
            done = dispatcher.call(number, x, out, op, options.root)
        if done is not None:
            if done.__class__ is int:
                self.engine.waits.finish_on(done, x, out)
        elif (found := pointers(x, out, kind.alike)) is not None:
            done = dispatcher.pointers(number, *found, op, options.root)
            if done:
                self.engine.waits.finish(done)
        if done is None:
            return None
        if kind.collective.rooted:  # a rank that gets nothing returns nothing
            world = self.engine.world
            g = geometry(kind.collective, world.rank, world.size, int(options.root))
            if not g.output.nblocks:
                return (None,)
        return (x if out is None else out,)

    def run(self, request: Request, options: CallOptions) -> Any:
        """Run a call and return its result."""
        plan = self._plan(request, options)
        _copy(request)
        self.engine.waits.call(plan.handle, *request.addresses, options.timeout)
        return request.result

    def submit(self, request: Request, options: CallOptions) -> Work:
        """Queue a call for the progress thread."""
        plan = self._plan(request, options)
        _copy(request)
        work = self.works.work(plan.text, options.timeout, request)
        return work.start([(plan, *request.addresses)], lambda: request.result)

    def bind(self, request: Request, options: CallOptions) -> Plan:
        """Bind a call to its arrays."""
        plan = self._plan(request, options)
        bound = self.bound(plan, request.addresses, options.timeout, request.result)
        holds = self.engine.heap.holds
        mapped = all(holds(array.address, array.nbytes) for array in request.views)
        by = plan.direct if mapped and plan.direct else plan.algorithm
        start = bound if request.copy is None else _copied(request, bound)
        if not self.plans.lasts(request.call, options.algorithm):
            start = self._again(request, options)
        pins = (self.works.owner(), request, plan)
        return Plan(
            self.engine,
            start,
            request.result,
            plan.text,
            by,
            plan.transport,
            options.timeout,
            pins,
        )

    def _again(self, request: Request, options: CallOptions) -> Callable[[], Any]:
        """Return what runs a call whose plan will be another one later."""

        def start() -> Any:
            _copy(request)
            plan = self._plan(request, options)
            return self.bound(plan, request.addresses, options.timeout, request.result)()

        return start

    def listed(
        self, kind: CollectiveKind, pairs: Sequence[Pair], op: ReduceOp, options: CallOptions
    ) -> ListCall:
        """Return a call of a list of arrays."""
        return ListCall(self._lists, kind, pairs, op, options)

    def shared(self, nbytes: int) -> Any:
        """Return the memory in which short arrays of a list travel, at least so many bytes."""
        return self._lists.buffers.shared(nbytes)

    def arrive(self, options: CallOptions, async_op: bool = False) -> Work | None:
        """Run or queue a barrier, for the purpose that is given."""
        call = replace(BARRIER, purpose=options.purpose)
        plan = self.plans.find(call, None, options.timeout)
        byte = load.ffi.new("unsigned char[1]")
        address = int(load.ffi.cast("uintptr_t", byte))
        if async_op:
            work = self.works.work(plan.text, options.timeout, byte)
            return work.start([(plan, address, address)], lambda: None)
        self.engine.waits.call(plan.handle, address, address, options.timeout)
        return None

    def bound(
        self, plan: BoundPlan, addresses: tuple[int, int], timeout: float | None, result: Any
    ) -> Any:
        """Bind a native plan to addresses."""
        engine = self.engine
        seconds = engine.timeout if timeout is None else timeout
        return load.fastcall.Plan(engine.number, plan.number, *addresses, seconds, result)

    def _plan(self, request: Request, options: CallOptions) -> BoundPlan:
        return self.plans.find(request.call, options.algorithm, options.timeout)


def _copy(request: Request) -> None:
    if request.copy is not None:
        x, copy = request.copy
        ctypes.memmove(copy.address, x.address, x.nbytes)


def _copied(request: Request, bound: Callable[[], Any]) -> Callable[[], Any]:
    def start() -> Any:
        _copy(request)
        return bound()

    return start
