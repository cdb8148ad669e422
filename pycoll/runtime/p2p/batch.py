"""Batch: transfers between ranks, with the arrays that they need; what `pairwise` is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pycoll.arrays import families, operands
from pycoll.arrays.view import ArrayView, Device, written_twice
from pycoll.dtypes import UINT8, DType
from pycoll.errors import UsageError, quoted
from pycoll.runtime.native.bindings import P2POp
from pycoll.runtime.plan.request import rank_of, table

#: Messages as a user gives them: arrays, each with a rank.
Pairs = Sequence[tuple[Any, int]]


class RankOf(NamedTuple):
    """A rank among the others."""

    rank: int
    size: int


class Batch(NamedTuple):
    """Transfers that begin together."""

    messages: list[P2POp]
    result: Any  #: what the method returns
    views: tuple[ArrayView, ...]  #: the arrays, which must not be collected meanwhile
    dtype: DType
    device: Device  #: that all of them lie on


#: Makes a new array like another, of another shape.
Empty = Callable[[ArrayView, tuple[int, ...]], ArrayView]


def exchange(place: RankOf, sends: Pairs, recvs: Pairs) -> Batch:
    """Look at messages to some ranks and from some ranks, in any order."""
    views: list[tuple[ArrayView, bool]] = []
    messages, who = [], "exchange"
    for pairs, sending, name in ((sends, True, "sends"), (recvs, False, "recvs")):
        for i, pair in enumerate(pairs):
            x, peer = _pair(pair, f"{who}: {name}[{i}]")
            view = array(x, f"{who}: {name}[{i}]", sending)
            peer = rank_of(peer, place.size, f"{who}: rank of {name}[{i}]")
            views.append((view, not sending))
            messages.append(_message(view, peer, sending))
    twice = written_twice(views)
    if twice is not None:
        name, i = ("sends", twice) if twice < len(sends) else ("recvs", twice - len(sends))
        raise UsageError(
            f"{who}: {name}[{i}] shares memory with another array that is received; "
            "pass every array once"
        )
    dtype = views[0][0].dtype if views else UINT8
    arrays = tuple(view for view, _ in views)
    return _batch(messages, [pair[0] for pair in recvs], arrays, dtype, who)


def one(place: RankOf, x: Any, peer: Any, sending: bool, who: str) -> Batch:
    """Look at one message."""
    view = array(x, f"{who}: x", sending)
    peer = rank_of(peer, place.size, f"{who}: {'to' if sending else 'frm'}")
    result = None if sending else x
    return _batch([_message(view, peer, sending)], result, (view,), view.dtype, who)


def alltoallv(
    place: RankOf, x: Any, send_counts: Sequence[int], out: Any, recv_counts: Sequence[int]
) -> Batch:
    """Look at a part for every rank and a part from every rank."""
    source = array(x, "alltoallv: x", sending=True)
    target = operands.target(out, source.dtype, "alltoallv: out")
    sent = _lengths(send_counts, place, "alltoallv: send_counts", source, "x")
    received = _lengths(recv_counts, place, "alltoallv: recv_counts", target, "out")
    operands.require_apart(source, target, "alltoallv")
    messages = [*_parts(source, sent, True), *_parts(target, received, False)]
    return _batch(messages, out, (source, target), source.dtype, "alltoallv")


def gatherv(
    place: RankOf,
    x: Any,
    counts: Sequence[int] | None,
    out: Any,
    root: int,
    who: str,
    empty: Empty = families.empty,
) -> Batch:
    """Look at this rank's part and, on the root, at where the parts of all ranks go."""
    root = rank_of(root, place.size, f"{who}: root")
    source = array(x, f"{who}: x", sending=True)
    if place.rank != root:
        return _batch([_message(source, root, True)], None, (source,), source.dtype, who)
    if out is None:
        target = empty(source, (sum(table(counts, place.size, f"{who}: counts")),))
    else:
        target = operands.target(out, source.dtype, f"{who}: out")
    lengths = _lengths(counts, place, f"{who}: counts", target, "out")
    return _at_root(source, target, lengths, root, who, gathers=True)


def scatterv(
    place: RankOf,
    x: Any,
    counts: Sequence[int] | None,
    out: Any,
    root: int,
    who: str,
    empty: Empty = families.empty,
) -> Batch:
    """Look at where this rank's part goes and, on the root, at the parts of all ranks."""
    root = rank_of(root, place.size, f"{who}: root")
    if place.rank != root:
        target = array(out, f"{who}: out", sending=False)
        return _batch([_message(target, root, False)], out, (target,), target.dtype, who)
    source = array(x, f"{who}: x", sending=True)
    lengths = _lengths(counts, place, f"{who}: counts", source, "x")
    if out is None:
        begin = sum(lengths[:root])
        target = families.rows(families.flat(source), begin, begin + lengths[root])
    else:
        target = operands.target(out, source.dtype, f"{who}: out")
    return _at_root(source, target, lengths, root, who, gathers=False)


def _at_root(
    source: ArrayView, target: ArrayView, lengths: Sequence[int], root: int, who: str, gathers: bool
) -> Batch:
    """Return the messages of the root, which has the parts of all ranks and one of its own."""
    whole, part, name = (target, source, "x") if gathers else (source, target, "out")
    messages = _parts(whole, lengths, not gathers)
    _fit(part, lengths[root], f"{who}: {name}")
    if part.address == messages[root].address:
        del messages[root]  # in place
    else:
        operands.require_apart(source, target, who)
        messages.append(_message(part, root, gathers))
    return _batch(messages, target.owner, (source, target), source.dtype, who)


def array(x: Any, who: str, sending: bool) -> ArrayView:
    """Look at an array that is sent or received into."""
    if x is None:
        raise UsageError(f"{who} is None, want an array")
    return families.look(x, who) if sending else operands.target(x, None, who)


def _batch(
    messages: list[P2POp], result: Any, views: tuple[ArrayView, ...], dtype: DType, who: str
) -> Batch:
    return Batch(messages, result, views, dtype, operands.together(views, who))


def _pair(pair: Any, who: str) -> tuple[Any, Any]:
    try:
        x, peer = pair
    except (TypeError, ValueError):
        raise UsageError(f"{who} is {quoted(pair)}, want an array and a rank") from None
    return x, peer


def _message(view: ArrayView, peer: int, sending: bool) -> P2POp:
    return P2POp(view.address, view.nbytes, peer, sending, view.dtype.code)


def _parts(whole: ArrayView, lengths: Sequence[int], sending: bool) -> list[P2POp]:
    """Return a message for every rank's part, empty ones too: whoever disagrees shall know."""
    messages, at = [], whole.address
    for peer, count in enumerate(lengths):
        nbytes = count * whole.dtype.itemsize
        messages.append(P2POp(at, nbytes, peer, sending, whole.dtype.code))
        at += nbytes
    return messages


def _lengths(
    counts: Sequence[int] | None, place: RankOf, who: str, whole: ArrayView, name: str
) -> tuple[int, ...]:
    found = table(counts, place.size, who)
    if sum(found) != whole.count:
        raise UsageError(f"{who} add up to {sum(found)} elements, and {name} has {whole.count}")
    return found


def _fit(part: ArrayView, want: int, who: str) -> None:
    if part.count != want:
        raise UsageError(f"{who} has {part.count} elements, want {want} by counts on this rank")
