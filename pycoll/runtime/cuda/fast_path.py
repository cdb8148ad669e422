"""Quick: finds the plan of a blocking call by what its arrays are, without looking at them again.

A view, a request and a call cost more than the launch. Arrays like those of an earlier call, in
dtype, shape, device and library, need none of it, unless they share memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll.arrays.families import spot
from pycoll.arrays.view import Spot, intersect

if TYPE_CHECKING:
    from pycoll.runtime.plan.cache import BoundPlan
    from pycoll.runtime.plan.options import CallOptions
    from pycoll.runtime.plan.request import Request

#: Kinds of calls that are remembered; when there are more, all are forgotten.
MOST = 1024


class CachedPlan(NamedTuple):
    """A kind of calls."""

    plan: BoundPlan
    reads: bool  #: x is the input
    writes: bool  #: there is a result, in out, or in x where there is none


class Hit(NamedTuple):
    """A call that can be launched."""

    plan: BoundPlan
    x: int
    out: int
    spot: Spot
    result: Any


class FastPath:
    """The kinds of calls that one communicator has made on a GPU."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], CachedPlan] = {}

    def find(self, name: str, x: Any, out: Any, op: int, options: CallOptions) -> Hit | None:
        """Return a call that can be launched; None sends the caller to look at its arrays."""
        if not self._known or (at := spot(x)) is None or options.root.__class__ is not int:
            return None
        target = at
        if out is not None and out is not x:
            there = spot(out)
            if there is None or there.family is not at.family or there.given != at.given:
                return None
            target = there
        known = self._known.get(_key(name, op, options, at, target, x, out))
        if known is None:
            return None
        a, b = at.address, target.address
        if known.writes and target is not at and intersect(a, at.nbytes, b, target.nbytes):
            return None  # perhaps as they may
        result = (x if out is None else out) if known.writes else None
        return Hit(known.plan, a if known.reads else 0, b if known.writes else 0, at, result)

    def learn(self, options: CallOptions, request: Request, plan: BoundPlan) -> None:
        """Remember a kind of calls that needs nothing else than its plan."""
        call, (x, out), result = request.call, request.given, request.result
        if request.copy is not None or (
            result is not None and result is not (x if out is None else out)
        ):
            return  # something is made for each call
        at = spot(x)
        target = at if out is None or out is x else spot(out)
        if at is None or target is None or target.family is not at.family:
            return
        if options.root.__class__ is not int:  # a number of another kind; it may not be hashable
            return
        if len(self._known) >= MOST:
            self._known.clear()
        key = _key(call.collective, call.op, options, at, target, x, out)
        self._known[key] = CachedPlan(plan, request.x is not None, request.out is not None)


def _key(
    name: str, op: int, options: CallOptions, at: Spot, target: Spot, x: Any, out: Any
) -> tuple[Any, ...]:
    # In place is another kind of call: some collectives copy first.
    there = None if out is None else True if out is x else target.kind
    return name, op, options.root, options.algorithm, at.kind, there
