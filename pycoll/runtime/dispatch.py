"""From a user's arrays to a started plan: the calls that `_fastcall` alone does not serve.

1. `run` and `bind` check the words of a call; a list of arrays is a `Listed` call from here on.
2. `Executor.again` starts a blocking call that is like an earlier one, by a glance at its arrays.
3. `request` looks at the arrays (`arrays.families`) and says what all ranks must ask for alike.
4. `Executor.run`, `submit` or `bind` finds or makes the plan of that.
5. The plan is started on the arrays' addresses, and known to 2 from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.arguments import check_timeout
from pycoll.arrays import families, operands
from pycoll.arrays.view import HOST, ArrayView, Device
from pycoll.dtypes import ReduceOp, reduce_op
from pycoll.errors import UsageError, quoted
from pycoll.order import FIXED, require_order
from pycoll.runtime.host.executor import HostExecutor
from pycoll.runtime.plan import buckets
from pycoll.runtime.plan.call import BARRIER
from pycoll.runtime.plan.executor import Executor, Listed
from pycoll.runtime.plan.geometry import geometry
from pycoll.runtime.plan.options import CallOptions, Ordered
from pycoll.runtime.plan.persistent import Plan
from pycoll.runtime.plan.request import (
    KINDS,
    CollectiveKind,
    Request,
    RequestBuilder,
    new,
    rank_of,
)
from pycoll.runtime.work import Work, Works
from pycoll.schedule import Algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycoll.runtime.cuda.executor import CudaExecutor
    from pycoll.runtime.engine import Engine
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.call import Call, Wanted

_LISTS = (list, tuple)  # a union of types costs several times as much to test for


class Message(NamedTuple):
    """One message of a call on arrays of the host, and what runs it."""

    call: Call
    wanted: Wanted  #: the algorithm that the user named
    plan: BoundPlan
    inputs: Sequence[ArrayView]  #: none where this rank brings nothing
    outputs: Sequence[ArrayView]
    packed: bool = False  #: the arrays travel in memory of the engine's


class Dispatcher:
    """The collectives of one communicator."""

    def __init__(self, engine: Engine, owner: Any) -> None:
        self.engine = engine
        self._works = Works(engine, owner)
        self._host = HostExecutor(engine, self._works)
        self._cuda: CudaExecutor | None = None  #: of those that use no GPU nothing more is asked
        self.plans = self._host.plans

    def run(self, name: str, x: Any, out: Any, options: CallOptions, async_op: bool = False) -> Any:
        """Run or queue a collective; see its method in `Communicator`."""
        kind, op, fixed = self._check(name, options)
        if kind.lists and isinstance(x, _LISTS):
            call = self._listed(kind, x, out, op, options._replace(fixed=fixed))
            return call.submit() if async_op else call.run()
        out = x if kind.out == "x" else out
        if not async_op and options.repeats:
            found = self._host.again(kind, x, out, op, options)
            if found is None and self._cuda is not None:
                found = self._cuda.again(kind, x, out, op, options)
            if found is not None:
                return found[0]
        options = options._replace(fixed=fixed)
        request = self._request(kind, x, out, op, options)
        executor = self._executor(request.device)
        return executor.submit(request, options) if async_op else executor.run(request, options)

    def bind(self, name: str, x: Any, out: Any, options: CallOptions) -> Plan:
        """Bind a collective to its arrays."""
        kind, op, fixed = self._check(name, options)
        options = options._replace(fixed=fixed)
        if kind.lists and isinstance(x, _LISTS):
            return self._listed(kind, x, out, op, options).bind()
        if kind.out == "x" and out is not None:
            raise UsageError(f"{name}: out is given, but the result goes to x; pass None")
        request = self._request(kind, x, x if kind.out == "x" else out, op, options)
        return self._executor(request.device).bind(request, options)

    def messages(
        self, name: str, x: Any, out: Any, options: CallOptions
    ) -> tuple[list[Message], Any] | None:
        """Return the messages of a call that is about to be made, and where its result goes.

        The call is then to be made with that as ``out``. None: its arrays lie on a GPU.
        """
        kind, op, fixed = self._check(name, options)
        options = options._replace(fixed=fixed)
        asked, timeout = options.algorithm, options.timeout
        wanted = asked.algorithm if isinstance(asked, Ordered) else asked
        if kind.lists and isinstance(x, _LISTS):
            found = buckets.pairs(x, out, kind.name, kind.collective.reduces)
            if operands.together((v for pair in found for v in pair), kind.name) != HOST:
                return None
            world = self.engine.world
            root = rank_of(options.root, world.size, f"{name}: root")
            brings = geometry(kind.collective, world.rank, world.size, root).input.nblocks
            made = []
            for one in buckets.buckets(found):
                folds = op if kind.collective.reduces else ReduceOp.SUM
                call = one.call(name, folds, root, fixed)
                plan = self.plans.find(call, asked, timeout)
                inputs = [given for given, _ in one.pairs] if brings else []
                outputs = [result for _, result in one.pairs]
                made.append(Message(call, wanted, plan, inputs, outputs, len(one.pairs) > 1))
            return made, out
        request = self._request(kind, x, x if kind.out == "x" else out, op, options)
        if request.device != HOST:
            return None
        given = request.x if request.copy is None else request.copy[0]
        plan = self.plans.find(request.call, asked, timeout)
        inputs, outputs = ([v] if v is not None else [] for v in (given, request.out))
        if kind.default is new and request.out is not None:
            out = request.result
        copied = request.copy is not None  # as what is packed
        return [Message(request.call, wanted, plan, inputs, outputs, copied)], out

    def shared(self, nbytes: int) -> Any:
        """Return the memory in which short arrays of a list travel, at least so many bytes."""
        return self._host.shared(nbytes)

    def arrive(self, options: CallOptions, async_op: bool) -> Work | None:
        """Run a barrier, or queue one."""
        options = options._replace(purpose=options.purpose or BARRIER.purpose)
        self._check("allreduce", options)
        return self._host.arrive(options, async_op)

    @property
    def cuda(self) -> CudaExecutor:
        """What runs collectives on arrays in a GPU's memory."""
        if self._cuda is None:
            # Loaded at the first array of a GPU: most programs have none.
            from pycoll.runtime.cuda.executor import CudaExecutor

            self._cuda = CudaExecutor(self._host)
        return self._cuda

    def on(self, device: str, who: str) -> CudaExecutor:
        """Return what serves a kind of device that the user has named."""
        if device != "cuda":
            raise UsageError(f'{who}: device is {quoted(device)}, want "cpu" or "cuda"')
        return self.cuda

    def _executor(self, device: Device) -> Executor:
        return self._host if device == HOST else self.cuda

    def _listed(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, options: CallOptions
    ) -> Listed:
        pairs = buckets.pairs(x, out, kind.name, kind.collective.reduces)
        device = operands.together((view for pair in pairs for view in pair), kind.name)
        return self._executor(device).listed(kind, pairs, op, options)

    def _check(self, name: str, options: CallOptions) -> tuple[CollectiveKind, ReduceOp, bool]:
        """Return what a call is, how it folds, and whether in the fixed order."""
        who = (options.purpose and options.method) or name
        self.engine.life.require_usable(who)
        asked = options.algorithm
        wanted = asked.algorithm if isinstance(asked, Ordered) else asked
        if not (wanted is None or isinstance(wanted, str | Algorithm)):
            raise UsageError(
                f"{name}: algorithm is a {type(wanted).__name__}, want the name of a built-in or "
                f"a function under @pycoll.algorithm(pycoll.{name})"
            )
        if options.timeout is not None:
            check_timeout(who, options.timeout)
        if not isinstance(name, str):
            raise UsageError(f"plan: collective is {quoted(name)}, want one of {', '.join(KINDS)}")
        kind = KINDS.get(name) or KINDS.get(name.removesuffix("v"))
        if kind is None or not (options.counts is None or kind.counted):
            known = [k.name for k in KINDS.values() if k.counted or options.counts is None]
            with_counts = "" if options.counts is None else " with counts"
            raise UsageError(
                f"plan: collective{with_counts} is {quoted(name)}, want one of {', '.join(known)}"
            )
        fixed = self.engine.fixed and kind.collective.reduces
        if isinstance(asked, Ordered):
            fixed = require_order(name, asked.order) == FIXED
            if fixed and not kind.collective.reduces:
                raise UsageError(f"{name}: order is 'fixed', but it folds nothing; pass None")
        return kind, reduce_op(options.op), fixed

    def _request(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, options: CallOptions
    ) -> Request:
        world = self.engine.world
        builder = RequestBuilder(
            kind, world.rank, world.size, options.root, options.counts, self.empty
        )
        return builder.request(x, out, op, options.purpose, options.fixed)

    def empty(self, like: ArrayView, shape: tuple[int, ...]) -> ArrayView:
        """Return a new array like another, in the same memory."""
        return (
            families.empty(like, shape)
            if like.device == HOST
            else self.cuda.streams.new(like, shape)
        )
