"""Request: one call's arrays, checked, and what all ranks must ask for alike.

One path serves every collective. Its rules say which blocks a rank brings and which it gets
(`geometry`); what is left to say of each is where the result goes if the user does not say so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pycoll.arrays import families, operands
from pycoll.arrays.dtype import require_reduced
from pycoll.arrays.view import ArrayView, Device
from pycoll.dtypes import ReduceOp
from pycoll.errors import UsageError, quoted
from pycoll.runtime.plan.call import Call
from pycoll.runtime.plan.geometry import Extent, geometry
from pycoll.schedule import COLLECTIVES, Collective


class Request(NamedTuple):
    """What one call asks of the engine."""

    call: Call
    x: ArrayView | None  #: None: this rank brings nothing
    out: ArrayView | None  #: None: this rank gets nothing
    #: where x was and where it is read, to be copied before each run: the result overwrites it
    copy: tuple[ArrayView, ArrayView] | None = None
    given: tuple[Any, Any] = (None, None)  #: x and out, as the user passed them

    @property
    def views(self) -> list[ArrayView]:
        """The arrays that there are."""
        return [array for array in (self.x, self.out) if array is not None]

    @property
    def device(self) -> Device:
        """Where they lie."""
        return self.views[0].device

    @property
    def addresses(self) -> tuple[int, int]:
        """Of the input and the output; 0 where there is none."""
        return self.x.address if self.x else 0, self.out.address if self.out else 0

    @property
    def result(self) -> Any:
        """What the method returns."""
        return self.out.owner if self.out else None


class RequestBuilder:
    """A call of one collective on one rank, while its arrays are looked at."""

    def __init__(
        self,
        kind: CollectiveKind,
        rank: int,
        size: int,
        root: Any,
        counts: Sequence[int] | None,
        empty: Callable[[ArrayView, tuple[int, ...]], ArrayView] = families.empty,
    ) -> None:
        self.kind = kind
        self.empty = empty  #: makes a new array like another
        self.who = kind.name if counts is None else f"{kind.name}v"
        self.rank, self.size = rank, size
        self.root = rank_of(root, size, f"{self.who}: root")
        self.geometry = geometry(kind.collective, rank, size, self.root)
        self.counts = () if counts is None else table(counts, size, f"{self.who}: counts")

    def request(
        self, x: Any, out: Any, op: ReduceOp, purpose: str = "", fixed: bool = False
    ) -> Request:
        """Look at the arrays.

        Raises:
            UsageError: They cannot be served; the message says which and what to do.
        """
        brings, gets = self.geometry.input, self.geometry.output
        source = self._source(x) if brings.nblocks else None
        target = None
        if source is None:
            target = self._target(out, None)
        elif gets.nblocks:
            target = self.kind.default(self, source) if out is None else self._target(out, source)
        if source is not None and self.kind.collective.reduces:
            require_reduced(source.dtype, f"{self.who}: x")
        known = source or target
        assert known is not None  # each rank of each collective brings something or gets something
        even = len(set(self.counts)) <= 1
        call = Call(
            self.kind.name,
            op if self.kind.collective.reduces else ReduceOp.SUM,
            known.dtype,
            sum(self.counts),
            self.root,
            () if even else self.counts,
            purpose=purpose,
            fixed=fixed,
        )
        copy = None
        if source is not None and target is not None and self._copies(source, target):
            copy = source, self.empty(source, source.shape)
            source = copy[1]
        return Request(call, source, target, copy, (x, out))

    def _source(self, x: Any) -> ArrayView:
        if x is None:
            raise UsageError(f"{self.who}: x is None on rank {self.rank}, want an array there")
        found = families.look(x, f"{self.who}: x")
        self._fit(found, "x", self.geometry.input)
        return found

    def _target(self, out: Any, source: ArrayView | None) -> ArrayView:
        name = self.kind.out
        if out is None:
            raise UsageError(f"{self.who}: {name} is None on rank {self.rank}, want an array there")
        if source is not None and out is source.owner and source.writable:
            return source
        shape = source.shape if source is not None and self.kind.alike else None
        dtype = source.dtype if source is not None else None
        found = operands.target(out, dtype, f"{self.who}: {name}", shape)
        self._fit(found, name, self.geometry.output)
        return found

    def _fit(self, array: ArrayView, name: str, extent: Extent) -> None:
        """Check the length of an array; the first one tells how long equal blocks are."""
        if not self.counts:
            if array.count % extent.nblocks:
                raise UsageError(
                    f"{self.who}: {name} has {array.count} elements, want a multiple of "
                    f"{extent.nblocks}, the number of ranks"
                )
            self.counts = (array.count // extent.nblocks,) * self.geometry.nblocks
        want = extent.total(self.counts)
        if array.count != want:
            raise UsageError(f"{self.who}: {name} has {array.count} elements, want {want}")

    def _copies(self, x: ArrayView, out: ArrayView) -> bool:
        """Tell whether the result overwrites the input; refuse arrays that do not go together."""
        operands.together((x, out), self.who)
        if self.kind.collective.in_place:  # each block lies in the same memory in both
            g = self.geometry
            in_place = self._begin(x, g.input) == self._begin(out, g.output)
        else:
            in_place = (x.address, x.nbytes) == (out.address, out.nbytes)
        operands.require_apart(x, out, self.who, self.kind.cure, in_place)
        return not self.kind.collective.in_place and x.overlaps(out)

    def _begin(self, array: ArrayView, extent: Extent) -> int:
        """Return where block 0 would begin."""
        return array.address - extent.begin(self.counts) * array.dtype.itemsize


def in_place(asking: RequestBuilder, x: ArrayView) -> ArrayView:
    """The result goes to x."""
    return operands.result(x, None, asking.who)


def new(asking: RequestBuilder, x: ArrayView) -> ArrayView:
    """The result goes to a new array: x with more or fewer rows; flat where blocks differ."""
    have, want = asking.geometry.input, asking.geometry.output
    if len(set(asking.counts)) > 1:
        return asking.empty(x, (want.total(asking.counts),))
    rows = x.shape[0] if x.shape else 1
    _check_rows(asking, x, rows, have)
    return asking.empty(x, (rows // have.nblocks * want.nblocks, *x.shape[1:]))


def own_part(asking: RequestBuilder, x: ArrayView) -> ArrayView:
    """The result is this rank's part of x."""
    have, want = asking.geometry.input, asking.geometry.output
    if have.nblocks == 1:
        return operands.result(x, None, asking.who)
    _check_rows(asking, x, x.shape[0], have)
    each = x.shape[0] // have.nblocks
    return families.rows(x, want.first * each, (want.first + 1) * each)


def _check_rows(asking: RequestBuilder, x: ArrayView, rows: int, extent: Extent) -> None:
    if rows % extent.nblocks:
        raise UsageError(
            f"{asking.who}: the first axis of x has length {rows} (shape {x.shape}), want a "
            f"multiple of {extent.nblocks}, the number of ranks; or pass out="
        )


@dataclass(frozen=True)
class CollectiveKind:
    """A collective as a method of the communicator."""

    collective: Collective
    default: Callable[
        [RequestBuilder, ArrayView], ArrayView
    ]  #: finds ``out`` where the user gave none
    alike: bool = False  #: out has the shape of x
    lists: bool = False  #: x may be a list of arrays
    counted: bool = False  #: blocks may be of different lengths, which all ranks know
    out: str = "out"  #: what the user calls the array that the result goes to
    cure: str = operands.IN_PLACE

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.collective.name


def _kind(
    name: str, default: Callable[[RequestBuilder, ArrayView], ArrayView], **more: Any
) -> CollectiveKind:
    return CollectiveKind(COLLECTIVES[name], default, **more)


_OF_OUT = "this rank's own part of out as x (in place)"
_OF_X = "this rank's own part of x (in place)"

#: Of one rank's block, and bytes of a message, as far as native code counts.
_MOST_ELEMENTS = 1 << 48

#: Collective → the number by which native code knows it; `collectives.ROWS` has the same order.
NUMBERS = {name: number for number, name in enumerate((*COLLECTIVES, "barrier"))}

KINDS: dict[str, CollectiveKind] = {
    kind.name: kind
    for kind in (
        _kind("allreduce", in_place, alike=True, lists=True),
        _kind("broadcast", in_place, alike=True, lists=True, out="x"),
        _kind("reduce", in_place, alike=True),
        _kind("allgather", new, counted=True, cure=_OF_OUT),
        _kind("gather", new, cure=_OF_OUT),
        _kind("scatter", own_part, cure=_OF_X),
        _kind("reduce_scatter", new, counted=True, cure=_OF_X),
        _kind("alltoall", new, cure="the same array"),
    )
}


def rank_of(value: Any, size: int, who: str) -> int:
    """Return a rank that the user named; UsageError if there is no such rank."""
    try:
        rank = operator.index(value)
    except TypeError:
        rank = -1
    if not 0 <= rank < size:
        raise UsageError(f"{who} is {quoted(value)}, want a rank, 0 to {size - 1}")
    return rank


def table(counts: Sequence[int] | None, size: int, who: str) -> tuple[int, ...]:
    """Return the elements of each rank's block; UsageError if these are none."""
    try:
        found = tuple(operator.index(count) for count in (() if counts is None else counts))
    except TypeError:
        found = ()
    if len(found) != size or min(found) < 0 or max(found) > _MOST_ELEMENTS:
        raise UsageError(
            f"{who} is {quoted(counts)}, want {size} numbers of elements, one for each rank, each "
            "from 0 to 2**48"
        )
    return found
