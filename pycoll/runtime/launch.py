"""From a user's arrays to a started plan: the calls that `_fastcall` alone does not serve."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from pycoll import arrays
from pycoll.dtypes import OPS, ReduceOp, reduce_op
from pycoll.errors import UsageError
from pycoll.runtime import bindings, coalesce
from pycoll.runtime.coalesce import Buffers, Message, Packing, Pair
from pycoll.runtime.faults import user_line
from pycoll.runtime.persistent import Plan
from pycoll.runtime.plan import BARRIER, Call, Executable, Plans, Wanted
from pycoll.runtime.work import Work
from pycoll.schedule import Algorithm

if TYPE_CHECKING:
    from pycoll.runtime.engine import Engine

_WHO = "allreduce"
_MAX_SECONDS = 86400
_NAMES = {op: name for name, op in OPS.items()}
_LISTS = (list, tuple)  # a union of types costs several times as much to test for


class Launch:
    """The collectives of one communicator."""

    def __init__(self, engine: Engine, owner: Any) -> None:
        self.plans = Plans(engine)
        self._engine = engine
        self._owner = weakref.ref(owner)  # weak: the communicator holds this
        self._buffers = Buffers(engine.heap)

    def allreduce(
        self, x: Any, out: Any, op: str, async_op: bool, wanted: Wanted, timeout: float | None
    ) -> Any:
        """Run or queue an all-reduce; see `Communicator.allreduce`."""
        kind = self._check(op, wanted, timeout)
        if isinstance(x, _LISTS):
            found = coalesce.pairs(x, out, _WHO)
            if async_op:
                return self._submit_list(found, kind, wanted, timeout)
            return self._run_list(found, kind, wanted, timeout)
        if timeout is None and not async_op:
            done = self._cached(x, out, kind, wanted)
            if done is not None:
                return done
        view, target, plan = self._find(x, out, kind, wanted)
        if async_op:
            part = (plan, view.address, target.address)
            work = self._work(plan.text, timeout, (view, target))
            return work.start([part], lambda: target.owner)
        self._engine.call(plan.handle, view.address, target.address, timeout)
        return target.owner

    def plan(self, x: Any, out: Any, op: str, wanted: Wanted, timeout: float | None) -> Plan:
        """Bind an all-reduce to its arrays."""
        kind = self._check(op, wanted, timeout)
        if isinstance(x, _LISTS):
            found = coalesce.pairs(x, out, _WHO)
            run = functools.partial(self._run_list, found, kind, wanted, timeout)
            texts = [self.plans.find(m.call(kind), wanted) for m in coalesce.messages(found)]
            text, by = (texts[0].text, texts[0].algorithm) if texts else ("allreduce([])", "none")
            return Plan(self._engine, run, None, text, by, timeout, (self._owner(), x, out))
        view, target, plan = self._find(x, out, kind, wanted)
        bound = self._bound(plan, view.address, target.address, timeout, target.owner)
        owner = (self._owner(), view, target, plan)
        holds = self._engine.heap.holds
        mapped = holds(view.address, view.nbytes) and holds(target.address, view.nbytes)
        by = plan.direct if mapped and plan.direct else plan.algorithm
        return Plan(self._engine, bound, target.owner, plan.text, by, timeout, owner)

    def barrier(self) -> Plan:
        """Bind a barrier: an all-reduce of one byte that nobody looks at."""
        self._engine.require_usable("barrier")
        plan, byte = self.plans.find(BARRIER, None), bindings.ffi.new("unsigned char[1]")
        address = int(bindings.ffi.cast("uintptr_t", byte))
        bound = self._bound(plan, address, address, None, None)
        return Plan(self._engine, bound, None, plan.text, plan.algorithm, None, (byte, plan))

    def _check(self, op: str, wanted: Wanted, timeout: float | None) -> ReduceOp:
        self._engine.require_usable(_WHO)
        if not (wanted is None or isinstance(wanted, str | Algorithm)):
            raise UsageError(
                f"{_WHO}: algorithm is a {type(wanted).__name__}, want the name of a built-in or "
                "a function under @pycoll.algorithm(pycoll.allreduce)"
            )
        if timeout is not None and not (
            isinstance(timeout, int | float) and 0 < timeout <= _MAX_SECONDS
        ):
            raise UsageError(
                f"{_WHO}: timeout is {timeout!r}, want seconds, more than 0 and at most "
                f"{_MAX_SECONDS}, or None"
            )
        return reduce_op(op)

    def _cached(self, x: Any, out: Any, op: ReduceOp, wanted: Wanted) -> Any:
        """Run the plan that serves these arrays, if there is one; None if there is not."""
        launcher = self.plans.launcher(wanted)
        # Without a wish, `Communicator.allreduce` has tried this already.
        done = None if wanted is None else launcher.call(0, x, out, int(op), 0)
        if done is None:
            found = arrays.tensors(x, out)
            if found is None:
                return None
            x_at, out_at, nbytes, dtype = found
            done = launcher.pointers(0, x_at, out_at, nbytes, nbytes, dtype, op, 0)
            if done is None:
                return None
            if done:
                self._engine.finish(done)
            return x if out is None else out
        if done.__class__ is int:
            with memoryview(x), memoryview(x if out is None else out):
                self._engine.finish(done)
            return x if out is None else out
        return done

    def _find(
        self, x: Any, out: Any, op: ReduceOp, wanted: Wanted
    ) -> tuple[arrays.ArrayView, arrays.ArrayView, Executable]:
        view = arrays.view(x, f"{_WHO}: x")
        target = arrays.result(view, out, _WHO)
        return view, target, self.plans.find(Call(_WHO, op, view.dtype, view.count), wanted)

    def _bound(self, plan: Executable, x: int, out: int, timeout: float | None, result: Any) -> Any:
        engine = self._engine
        seconds = engine.timeout if timeout is None else timeout
        return bindings.fastcall.Plan(engine.number, plan.number, x, out, seconds, result)

    def _work(self, text: str, timeout: float | None, pins: Any) -> Work:
        seconds = self._engine.timeout if timeout is None else timeout
        return Work(self._engine, f"{text} at {user_line()}", seconds, (self._owner(), pins))

    def _run_list(
        self, found: list[Pair], op: ReduceOp, wanted: Wanted, timeout: float | None
    ) -> list[Any]:
        messages = list(coalesce.messages(found))
        plans = [self.plans.find(message.call(op), wanted) for message in messages]
        with self._engine.entirely(f"{_WHO}({len(found)} arrays)"):
            for message, plan in zip(messages, plans, strict=True):
                if len(message.pairs) == 1:
                    x, out = message.pairs[0]
                    self._engine.call(plan.handle, x.address, out.address, timeout)
                    continue
                packing = Packing(message, self._buffers.shared(_nbytes(message)))
                packing.pack()
                self._engine.call(plan.handle, packing.address, packing.address, timeout)
                packing.unpack()
        return [out.owner for _, out in found]

    def _submit_list(
        self, found: list[Pair], op: ReduceOp, wanted: Wanted, timeout: float | None
    ) -> Work:
        parts, packings, text = [], [], f"{_WHO}([])"
        for message in coalesce.messages(found):
            plan = self.plans.find(message.call(op), wanted)
            text = plan.text
            if len(message.pairs) == 1:
                x, out = message.pairs[0]
                parts.append((plan, x.address, out.address))
                continue
            packing = Packing(message, self._buffers.own(_nbytes(message)))
            packing.pack()
            packings.append(packing)
            parts.append((plan, packing.address, packing.address))

        def finish() -> list[Any]:
            for packing in packings:
                packing.unpack()
            return [out.owner for _, out in found]

        with self._engine.entirely(f"{_WHO}({len(found)} arrays)"):
            return self._work(text, timeout, found).start(parts, finish)


def _nbytes(message: Message) -> int:
    return message.count * message.dtype.itemsize
