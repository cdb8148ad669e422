"""One function per function of ``native/pycoll.h`` that is about the event ring."""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

from pycoll.errors import encoded
from pycoll.runtime.native.load import ffi, lib, text_of

EVENTS: int = lib.PC_TRACE_EVENTS
LABELS: int = lib.PC_TRACE_LABELS
_TEXT: int = lib.PC_TRACE_TEXT - 1
_ABOUT: int = lib.PC_TRACE_ABOUT - 1


class RawEvent(NamedTuple):
    """A call, as the event ring has it; times are ticks, and 0 where there is none."""

    sequence: int
    signature: int
    entered: int
    finished: int
    waited_ns: int
    place: int
    waits: int
    peer: int  #: -1: none
    longest: int  #: microseconds
    code: int
    sent: tuple[int, ...]  #: by rail, of the whole communicator so far


class Latest(NamedTuple):
    """The newest events of a ring, of each kind; None where the ring has none."""

    begun: RawEvent | None
    finished: RawEvent | None
    waited: RawEvent | None  #: that has waited long for a peer


class Link(NamedTuple):
    """What a connection has carried, as its network counts it."""

    sent: int  #: bytes
    busy_ns: int


class Totals(NamedTuple):
    """What a communicator has counted since it was made."""

    waits: int
    waited_ns: int
    unlabelled: int  #: calls of kinds that are in no label any more
    calls: dict[int, tuple[int, str]]  #: signature → how many, and the text of its label


def comm_trace(comm: Any) -> Any:
    """Return the event ring of a communicator, which lives as long."""
    return lib.pc_comm_trace(comm)


def trace_find(memory: mmap.mmap) -> Any:
    """Return the event ring in a mapped arena; None if there is none."""
    at = ffi.from_buffer(memory)
    found = lib.pc_trace_find(at, len(memory))
    return ffi.gc(found, lambda _, kept=at: None) if found != ffi.NULL else None


def trace_read(trace: Any) -> list[RawEvent]:
    """Return the events of a ring, the oldest first."""
    found = ffi.new("struct pc_trace_event[]", EVENTS)
    count = lib.pc_trace_read(trace, found)
    return sorted(_raw(e) for e in found[0:count])


def _raw(e: Any) -> RawEvent:
    return RawEvent(
        *(e.sequence, e.signature, e.entered, e.finished, e.waited_ns, e.place),
        *(e.waits, e.peer, e.longest, e.code, tuple(e.bytes)),
    )


def trace_latest(trace: Any, microseconds: int) -> Latest:
    """Return the newest events, for much less than `trace_read` takes.

    Args:
        trace: The ring.
        microseconds: Which waits are long.
    """
    found = ffi.new("struct pc_trace_event[]", EVENTS)
    count = lib.pc_trace_read(trace, found)
    numbers = [e.sequence for e in found[0:count]]
    begun = finished = waited = None
    for k in sorted(range(count), key=numbers.__getitem__, reverse=True):
        e = found[k]
        begun = begun or _raw(e)
        if not finished and e.finished:
            finished = _raw(e)
        if not waited and e.longest >= microseconds and e.peer >= 0:
            waited = _raw(e)
        if finished and waited:
            break
    return Latest(begun, finished, waited)


def trace_status(memory: mmap.mmap) -> tuple[int, int, int] | None:
    """Return how many calls a rank has begun, the last one's signature, and the rank's state.

    None if the mapped memory is none of this version's. Nothing is written there.
    """
    found = ffi.new("struct pc_status *")
    if lib.pc_status_of_arena(ffi.from_buffer(memory), len(memory), found) < 0:
        return None
    return found.sequence, found.signature, found.state


def trace_totals(trace: Any) -> Totals:
    """Return what a ring has counted."""
    found = ffi.new("struct pc_trace_label[]", LABELS)
    count = lib.pc_trace_labels(trace, found)
    calls = {one.signature: (one.calls, text_of(one.text)) for one in found[0:count]}
    return Totals(trace.waits, trace.waited_ns, trace.unlabelled, calls)


def trace_about(trace: Any) -> str:
    """Return what `say_about` has said."""
    return text_of(trace.about)


def say_about(comm: Any, text: str) -> None:
    """Say what communicator it is, to whoever finds its ring in memory."""
    lib.pc_trace_about(lib.pc_comm_trace(comm), encoded(text)[:_ABOUT])


def label(comm: Any, signature: int, text: str) -> None:
    """Say what the calls of a signature are."""
    lib.pc_trace_label(lib.pc_comm_trace(comm), signature, encoded(text)[:_TEXT])


def trace_clock() -> tuple[int, int]:
    """Return ticks and CLOCK_MONOTONIC in nanoseconds at one moment."""
    ticks, ns = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.pc_trace_clock(ticks, ns)
    return ticks[0], ns[0]


def signal_watch(number: int) -> int | None:
    """Have a signal raise an eventfd and return it; None: something handles the signal already."""
    found = lib.pc_signal_watch(number)
    return found if found >= 0 else None


def signal_forget(number: int) -> None:
    """Have it do what it did before."""
    lib.pc_signal_forget(number)


def comm_links(comm: Any, peer: int) -> list[Link]:
    """Return what this rank's connections to a remote peer have carried; none: nobody counts it."""
    found = ffi.new("struct pc_link[]", lib.PC_MAX_RAILS)
    count = lib.pc_comm_links(comm, peer, found)
    return [Link(one.sent, one.busy_ns) for one in found[0:count]]
