"""Checks for silent corruption: every n-th call of a communicator is looked at, if asked for.

Without PYCOLL_CHECK nothing here is part of a call. With it, functions of Python stand in front of
the things by which the methods of a `Communicator` make their calls, as profilers put theirs
there. A call that is checked runs with copies of what its result overwrites; a reduction runs a
second time; then the ranks tell each other checksums. What is done with them is in
`pycoll.runtime.check`.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from pycoll import log
from pycoll.errors import CorruptionError
from pycoll.runtime.check.exchange import PURPOSE, Exchange, Garbled
from pycoll.runtime.check.memory import Room
from pycoll.runtime.check.moved import Moved, Pairs
from pycoll.runtime.check.reduction import Reduction
from pycoll.runtime.p2p import batch
from pycoll.runtime.plan.options import CallOptions
from pycoll.runtime.work import Work
from pycoll.schedule import COLLECTIVES

if TYPE_CHECKING:
    from pycoll.runtime.check.finding import Finding
    from pycoll.runtime.p2p.batch import Batch
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.persistent import Plan

_NATIVE = (
    *("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall"),
    *("gather", "scatter"),
)
_OBJECTS = ("broadcast", "allgather", "gather", "scatter")
_MESSAGES = ("send", "recv", "exchange")

#: Of what this process has said that it is not checked.
_said: set[str] = set()


class Looked(Protocol):
    """What is looked at in a checked call: one message, or some that go together."""

    def after(self) -> list[int]:
        """Look at the results; return what this rank tells the others."""

    def wrong(self, told: Sequence[Sequence[int]]) -> bool:
        """Tell whether they are wrong, from what all ranks told."""

    def find(self, exchange: Exchange, told: Sequence[Sequence[int]]) -> Finding | None:
        """Find out where and whose; None: no byte differs any more."""


class Checks:
    """Those of one communicator.

    Args:
        comm: The communicator, which holds this.
        every: How many calls it is from one that is checked to the next.
    """

    def __init__(self, comm: Any, every: int) -> None:
        self._engine, self._collectives = comm._engine, comm._collectives
        self._messages, self._every = comm._messages, every
        self._name = comm._engine.bootstrap.label
        self._room = Room(comm._engine.heap)
        self._count = 0  #: calls so far, alike on all ranks
        self._queued: list[Work[Any]] = []  #: calls that may be under way
        #: What ran the last call, where that was checked: the engine's last call is another one.
        self.ran: BoundPlan | None = None
        self._put_in_front(comm)

    def bound(self, plan: Plan, collective: str, x: Any, out: Any, options: CallOptions) -> None:
        """Count the runs of a plan among the calls, and check them."""
        start, this = plan._launch, weakref.ref(plan)  # weak: what is made here is the plan's
        name = collective.removesuffix("v")
        to = plan._result if out is None and name != "broadcast" else out

        def launch() -> Any:
            if not self._due():
                return start()
            held = this()
            assert held is not None  # it is being called
            return self._checked(name, x, to, options, lambda _: held._finished(start()))

        plan._launch = launch

    def _put_in_front(self, comm: Any) -> None:
        front: dict[str, Any] = {
            f"_{name}": self._native(name, getattr(comm, f"_{name}")) for name in _NATIVE
        }
        front |= {
            f"_{name}": self._unchecked(name, getattr(comm, f"_{name}")) for name in _MESSAGES
        }
        counted, objects = comm._counted, comm._objects
        front["_barrier"] = self._counted_only(comm._barrier)
        front["_counted"] = SimpleNamespace(
            by_counts=self._by_counts(counted.by_counts),
            alltoallv=self._alltoallv(counted.alltoallv),
            rooted=self._rooted(counted.rooted),
        )
        front["_objects"] = SimpleNamespace(
            **{name: self._object(name, getattr(objects, name)) for name in _OBJECTS}
        )
        front["_together"] = self._together(comm._together)
        vars(comm).update(front)

    # What stands in front.

    def _native(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            x: Any, out: Any, op: Any, root: Any, async_op: Any, algorithm: Any, timeout: Any
        ) -> Any:
            def make(to: Any) -> Any:
                return self._noted(call(x, to, op, root, async_op, algorithm, timeout))

            if not self._due():
                return make(out)
            options = CallOptions(op, root, None, algorithm, timeout)
            return self._checked(name, x, out, options, make, async_op)

        return run

    def _by_counts(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(name: str, x: Any, out: Any, options: CallOptions, async_op: Any) -> Any:
            def make(to: Any) -> Any:
                return self._noted(call(name, x, to, options, async_op))

            if not self._due() or options.counts is None:  # which is refused
                return make(out)
            return self._checked(name, x, out, options, make, async_op)

        return run

    def _alltoallv(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, sent: Any, out: Any, received: Any, async_op: Any, timeout: Any) -> Any:
            result = self._noted(call(x, sent, out, received, async_op, timeout))
            if self._due():
                place = self._messages.transfers.place
                look = lambda: batch.alltoallv(place, x, sent, out, received)  # noqa: E731
                self._look_at_pairs("alltoallv", look, result, timeout)
            return result

        return run

    def _rooted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            name: str, x: Any, counts: Any, out: Any, root: Any, async_op: Any, timeout: Any
        ) -> Any:
            result = self._noted(call(name, x, counts, out, root, async_op, timeout))
            if self._due():
                place, gathers = self._messages.transfers.place, name == "gatherv"
                to = out if result is None else result
                how = batch.gatherv if gathers else batch.scatterv
                look = lambda: how(place, x, counts, to, root, name)  # noqa: E731
                self._look_at_pairs(name, look, result, timeout)
            return result

        return run

    def _together(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(what: str, found: Batch, root: Any, timeout: Any, async_op: Any) -> Any:
            result = self._noted(call(what, found, root, timeout, async_op))
            if self._due():
                self._look_at_pairs(what, lambda: found, result, timeout)
            return result

        return run

    def _object(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            result = call(*args)
            if self._due():
                self._pass_over("objects (broadcast_object, ...)")
            return result

        return run

    def _counted_only(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self._due()  # a barrier moves nothing of anybody's
            return self._noted(call(*args))

        return run

    def _unchecked(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            result = call(*args)
            self._pass_over("messages between two ranks (send, recv, exchange)")
            return result

        return run

    # What is done in a call.

    def _due(self) -> bool:
        """Count a call; tell whether it is to be checked."""
        self._count += 1
        self.ran = None
        return self._count % self._every == 0

    def _noted(self, result: Any) -> Any:
        """Return what a call returned, and note it if it is under way."""
        if isinstance(result, Work):
            self._queued = [work for work in self._queued if work._parts]
            self._queued.append(result)
        return result

    def _finish_queued(self) -> None:
        """Wait until the calls are over that were queued before: they may write the input.

        A call that waits runs behind them in any case.
        """
        for work in self._queued:
            work._finished(math.inf)
        self._queued = []

    def _pass_over(self, what: str, depth: int = 4) -> None:
        """Say, once, that calls are not checked that would have been due.

        Args:
            what: They.
            depth: How many frames above this one's the user's is.
        """
        if what not in _said:
            _said.add(what)
            text = f"PYCOLL_CHECK={self._every}: {what} are not checked for silent corruption"
            log.warning("check", "%s", text)
            warnings.warn(text, stacklevel=depth)

    def _checked(
        self,
        name: str,
        x: Any,
        out: Any,
        options: CallOptions,
        make: Callable[[Any], Any],
        async_op: Any = False,
    ) -> Any:
        """Make a call, and check it."""
        if async_op is not False:
            result = make(out)
            self._pass_over("calls with async_op=True", 5)
            return result
        number, launch = self._count, self._collectives.launch
        try:
            found = launch.messages(name, x, out, options)
        except Exception:  # the call is refused, or fails, as it would without a check
            return make(out)
        if found is None:
            result = make(out)
            self._pass_over("arrays on a GPU", 5)
            return result
        messages, to = found
        reduces = COLLECTIVES[name].reduces
        looked: list[Any] = [
            Reduction(launch, self._room, message, i, options.timeout)
            if reduces
            else Moved(launch, self._room, message, i)
            for i, message in enumerate(messages)
        ]
        self._finish_queued()
        for one in looked:
            one.before()
        result = make(to)
        texts = [message.plan.text for message in messages]
        self._look(looked, texts, number, options.timeout)
        self.ran = messages[-1].plan if messages else None
        return result

    def _look_at_pairs(
        self, what: str, look: Callable[[], Batch], result: Any, timeout: Any
    ) -> None:
        if isinstance(result, Work):
            return self._pass_over("calls with async_op=True", 5)
        found = look()
        if found.device.kind != "cpu":
            return self._pass_over("arrays on a GPU", 5)
        world = self._engine.world
        pairs = Pairs(world.rank, world.size, found)
        self._look([pairs], [f"{what}({found.dtype.name})"], self._count, timeout)

    def _look(
        self, looked: Sequence[Looked], texts: Sequence[str], number: int, timeout: Any
    ) -> None:
        """Look at the results of a call with all ranks; raise what is wrong with them."""
        error: CorruptionError | None = None
        with self._engine.order.entirely(PURPOSE):
            mine = [one.after() for one in looked]
            exchange = Exchange(self._collectives.launch, timeout)
            try:
                error = self._wrong(looked, mine, texts, number, exchange)
            except Garbled as garbled:
                vague = f"{garbled}; whether its result is right is not known"
                error = self._vague(texts[0], number, vague)
        if error is not None:
            raise error

    def _wrong(
        self,
        looked: Sequence[Looked],
        mine: Sequence[list[int]],
        texts: Sequence[str],
        number: int,
        exchange: Exchange,
    ) -> CorruptionError | None:
        rows = exchange.gather([value for one in mine for value in one]) if looked else []
        at = 0
        for one, said, text in zip(looked, mine, texts, strict=True):
            told = [row[at : at + len(said)] for row in rows]
            at += len(said)
            if one.wrong(told):
                finding = one.find(exchange, told)
                if finding is not None:
                    return finding.error(text, number, self._name)
                vague = "checksums of its result differed, and no byte of it does any more"
                return self._vague(text, number, vague)
        return None

    def _vague(self, call: str, number: int, what: str) -> CorruptionError:
        """Return the error of a call whose place is not known."""
        error = CorruptionError(f"{call}, call {number} of communicator {self._name!r}: {what}")
        error.call, error.communicator = call, self._name
        return error
