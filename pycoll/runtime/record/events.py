"""Events: the last calls of one communicator, as its event ring has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pycoll.runtime.native import bindings, codes, trace
from pycoll.runtime.record.kinds import Kind
from pycoll.runtime.record.places import line_of
from pycoll.runtime.record.ticks import Clock


class Event(NamedTuple):
    """A call; times are of CLOCK_MONOTONIC, in nanoseconds."""

    seq: int  #: number of the call, alike on all ranks
    call: str  #: such as allreduce; of a refused one all that is known
    algorithm: str
    nbytes: int  #: of all blocks together
    dtype: str
    op: str  #: of a reduction
    line: str | None  #: file:line of the user's code
    entered_ns: int | None  #: None: a short call that never waited began just before it finished
    finished_ns: int | None  #: None: it has not
    waited_ns: int  #: in waits of more than some microseconds
    waits: int  #: times that nothing could be done
    peer: int | None  #: that the longest wait was for
    error: str  #: class of the error that it ended with, or ""
    sent: list[int]  #: bytes by rail; none where nothing counts them

    def ran(self, entered_ns: int | None, finished_ns: int | None) -> Event:
        """Return it with the times of a device that has run it, as the host only enqueued it."""
        return self._replace(entered_ns=entered_ns, finished_ns=finished_ns)


def read(ring: Any, clock: Clock, refused: Callable[[int], str], rails: int) -> list[Event]:
    """Return the events of a ring, the oldest first.

    Args:
        ring: As `trace.comm_trace` returns it.
        clock: By which their ticks are read.
        refused: Says what a refused call was, by its number.
        rails: How many there are; 0: no bytes are counted.
    """
    found = trace.trace_read(ring)  # first: a kind has its label before its first call
    kinds = {
        signature: Kind.read(text)
        for signature, (_, text) in trace.trace_totals(ring).calls.items()
    }
    events: list[Event] = []
    before: trace.RawEvent | None = None
    for raw in found:
        refusal = raw.signature == bindings.REFUSED
        kind = Kind(refused(raw.sequence) or "a call") if refusal else kinds.get(raw.signature)
        events.append(
            Event(
                raw.sequence,
                *(kind or Kind("a call")),
                line_of(raw.place),
                # Who is in a call that has not waited yet came a moment ago.
                clock.ns(raw.entered) if raw.entered or raw.finished else clock.now_ns,
                clock.ns(raw.finished),
                raw.waited_ns,
                raw.waits,
                raw.peer if raw.peer >= 0 else None,
                "refused" if refusal else _error(raw.code),
                _sent(raw, before, rails),
            )
        )
        before = raw
    return events


def _error(code: int) -> str:
    if code == 0:
        return ""
    kind = codes.EXCEPTIONS.get(-code)
    return kind.__name__ if kind else codes.code_name(-code)


def _sent(raw: trace.RawEvent, before: trace.RawEvent | None, rails: int) -> list[int]:
    """Return what went out between the ends of two calls; of the first in the ring nothing."""
    if not rails or not raw.finished or (raw.sequence > 1 and before is None):
        return []
    earlier = before.sent if before else (0,) * len(raw.sent)
    if before and before.sequence != raw.sequence - 1:
        return []
    return [max(0, now - then) for now, then in zip(raw.sent[:rails], earlier, strict=False)]
