"""From a user's arrays to a started plan: the calls that `_fastcall` alone does not serve."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll import arrays
from pycoll.dtypes import ReduceOp, reduce_op
from pycoll.errors import UsageError
from pycoll.runtime import bindings
from pycoll.runtime.asked import Asked
from pycoll.runtime.call import BARRIER
from pycoll.runtime.coalesce import Buffers
from pycoll.runtime.geometry import geometry
from pycoll.runtime.line import user_line
from pycoll.runtime.lists import ListCall
from pycoll.runtime.persistent import Plan
from pycoll.runtime.plan import Executable, Plans
from pycoll.runtime.request import KINDS, NUMBERS, Asking, Kind, Request
from pycoll.runtime.work import Work
from pycoll.schedule import Algorithm

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine

_LISTS = (list, tuple)  # a union of types costs several times as much to test for


class Launch:
    """The collectives of one communicator."""

    def __init__(self, engine: Engine, owner: Any) -> None:
        self.engine = engine
        self.plans = Plans(engine)
        self.buffers = Buffers(engine.heap)
        self._owner = weakref.ref(owner)  # weak: the communicator holds this

    def run(self, name: str, x: Any, out: Any, asked: Asked, async_op: bool = False) -> Any:
        """Run or queue a collective; see its method in `Communicator`."""
        kind, op = self._check(name, asked)
        if kind.lists and isinstance(x, _LISTS):
            call = ListCall(self, kind, x, out, op, asked)
            return call.submit() if async_op else call.run()
        plain = asked.timeout is None and asked.counts is None and not asked.purpose
        if plain and not async_op and self._run_cached(kind, x, out, op, asked):
            return self._result(kind, x, out, asked)
        request = self._request(kind, x, out, op, asked)
        plan = self.plans.find(request.call, asked.algorithm, asked.timeout)
        if request.prepare is not None:
            request.prepare()
        if async_op:
            work = self.work(plan.text, asked.timeout, request)
            return work.start([(plan, *request.addresses)], lambda: request.result)
        self.engine.call(plan.handle, *request.addresses, asked.timeout)
        return request.result

    def bind(self, name: str, x: Any, out: Any, asked: Asked) -> Plan:
        """Bind a collective to its arrays."""
        kind, op = self._check(name, asked)
        if kind.lists and isinstance(x, _LISTS):
            return ListCall(self, kind, x, out, op, asked).bind()
        if kind.out == "x" and out is not None:
            raise UsageError(f"{name}: out is given, but the result goes to x; pass None")
        request = self._request(kind, x, out, op, asked)
        plan = self.plans.find(request.call, asked.algorithm, asked.timeout)
        bound = self._bound(plan, request.addresses, asked.timeout, request.result)
        holds = self.engine.heap.holds
        mapped = all(
            holds(array.address, array.nbytes)
            for array in (request.x, request.out)
            if array is not None
        )
        by = plan.direct if mapped and plan.direct else plan.algorithm
        start = bound if request.prepare is None else _prepared(request.prepare, bound)
        pins = (self.owner(), request, plan)
        return Plan(
            self.engine,
            start,
            request.result,
            plan.text,
            by,
            plan.transport,
            asked.timeout,
            pins,
        )

    def barrier(self) -> Plan:
        """Bind a barrier: an all-reduce of one byte that nobody looks at."""
        self.engine.require_usable("barrier")
        plan, byte = self.plans.find(BARRIER, None), bindings.ffi.new("unsigned char[1]")
        address = int(bindings.ffi.cast("uintptr_t", byte))
        bound = self._bound(plan, (address, address), None, None)
        # Held by the communicator itself, so it must not hold that.
        pins = (byte, plan)
        text, by, transport = plan.text, plan.algorithm, plan.transport
        return Plan(self.engine, bound, None, text, by, transport, None, pins)

    def arrive(self, asked: Asked, async_op: bool) -> Work | None:
        """Run a barrier with a timeout of its own, or queue one."""
        asked = asked._replace(purpose=asked.purpose or BARRIER.purpose)
        self._check("allreduce", asked)
        call = replace(BARRIER, purpose=asked.purpose)
        plan = self.plans.find(call, None, asked.timeout)
        byte = bindings.ffi.new("unsigned char[1]")
        address = int(bindings.ffi.cast("uintptr_t", byte))
        if async_op:
            work = self.work(plan.text, asked.timeout, byte)
            return work.start([(plan, address, address)], lambda: None)
        self.engine.call(plan.handle, address, address, asked.timeout)
        return None

    def owner(self) -> Any:
        """Return the communicator, to be held by what needs it."""
        return self._owner()

    def work(self, text: str, timeout: float | None, pins: Any) -> Work:
        """Return a Work of the communicator that is not started yet."""
        seconds = self.engine.timeout if timeout is None else timeout
        return Work(self.engine, f"{text} at {user_line()}", seconds, (self.owner(), pins))

    def _check(self, name: str, asked: Asked) -> tuple[Kind, ReduceOp]:
        who = asked.method or name
        self.engine.require_usable(who)
        wanted = asked.algorithm
        if not (wanted is None or isinstance(wanted, str | Algorithm)):
            raise UsageError(
                f"{name}: algorithm is a {type(wanted).__name__}, want the name of a built-in or "
                f"a function under @pycoll.algorithm(pycoll.{name})"
            )
        self.engine.check_timeout(who, asked.timeout)
        kind = KINDS.get(name) or KINDS.get(name.removesuffix("v"))
        if kind is None or not (asked.counts is None or kind.counted):
            known = [k.name for k in KINDS.values() if k.counted or asked.counts is None]
            with_counts = "" if asked.counts is None else " with counts"
            raise UsageError(
                f"plan: collective{with_counts} is {name!r}, want one of {', '.join(known)}"
            )
        return kind, reduce_op(asked.op)

    def _request(self, kind: Kind, x: Any, out: Any, op: ReduceOp, asked: Asked) -> Request:
        world = self.engine.world
        asking = Asking(kind, world.rank, world.size, asked.root, asked.counts)
        return asking.request(x, x if kind.out == "x" else out, op, asked.purpose)

    def _run_cached(self, kind: Kind, x: Any, out: Any, op: ReduceOp, asked: Asked) -> bool:
        """Run the plan that serves these arrays, if there is one."""
        launcher, number = self.plans.launcher(asked.algorithm), NUMBERS[kind.name]
        if asked.algorithm is not None:  # without a wish, `Communicator` has tried this already
            done = launcher.call(number, x, out, op, asked.root)
            if done is not None:
                if done.__class__ is int:
                    self.engine.finish_on(done, x, out)
                return True
        found = arrays.tensors(x, out, kind.alike)
        if found is None:
            return False
        done = launcher.pointers(number, *found, op, asked.root)
        if done:
            self.engine.finish(done)
        return done is not None

    def _result(self, kind: Kind, x: Any, out: Any, asked: Asked) -> Any:
        """Return what the method returns, after a cached plan ran."""
        world = self.engine.world
        g = geometry(kind.collective, world.rank, world.size, int(asked.root))
        return None if not g.output.nblocks else x if out is None else out

    def _bound(
        self, plan: Executable, addresses: tuple[int, int], timeout: float | None, result: Any
    ) -> Any:
        engine = self.engine
        seconds = engine.timeout if timeout is None else timeout
        return bindings.fastcall.Plan(engine.number, plan.number, *addresses, seconds, result)


def _prepared(prepare: Callable[[], object], bound: Callable[[], Any]) -> Callable[[], Any]:
    def start() -> Any:
        prepare()
        return bound()

    return start
