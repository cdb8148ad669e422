"""Record: what one rank wrote of its last calls, as docs/trace.md describes the file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FORMAT = "pycoll-record-1"

#: Calls whose numbers are not alike on all ranks: messages between some of them.
_TRANSFERS = {"send", "recv", "exchange"}


class Event(NamedTuple):
    """One call. Times are of this rank's CLOCK_MONOTONIC, in nanoseconds."""

    seq: int
    call: str
    algorithm: str  #: "": the call was refused, and `call` is the text that it was asked with
    nbytes: int  #: of the message, all blocks together
    dtype: str
    op: str
    device: str
    line: str | None
    entered_ns: int | None  #: None: it never waited, so it began just before it finished
    finished_ns: int | None  #: None: it had not finished
    waited_ns: int
    waits: int
    peer: int | None  #: rank of the communicator for which the longest wait was
    error: str
    sent: tuple[int, ...]  #: bytes by rail

    @property
    def kind(self) -> str:
        """Name of the collective, also of a refused call."""
        return self.call.partition("(")[0]

    @property
    def transfer(self) -> bool:
        """Whether it is a message, and no collective."""
        return self.kind in _TRANSFERS

    @property
    def arrived_ns(self) -> int:
        """When this rank came to the call."""
        at = self.finished_ns if self.entered_ns is None else self.entered_ns
        assert at is not None  # `reading` refuses an event without either
        return at


class Link(NamedTuple):
    """What this rank has sent to a peer of another host, by one rail."""

    peer: int  #: rank of the communicator
    rail: int
    sent: int  #: bytes that were acknowledged
    busy_ns: int  #: in which something was on its way


class Comm(NamedTuple):
    """One communicator, as this rank saw it."""

    name: str
    id: str
    rank: int
    ranks: tuple[int, ...]  #: of the job, by rank of the communicator
    hosts: tuple[int, ...]  #: number of the host of each
    transport: str
    rails: tuple[str, ...]
    events: tuple[Event, ...]
    links: tuple[Link, ...]


class Clock(NamedTuple):
    """Clocks at the moment of writing; `offset_ns` leads to the CLOCK_MONOTONIC of a rank."""

    monotonic_ns: int
    unix_ns: int
    reference: int | None  #: which: the rank that carried the control plane; None: not aligned
    offset_ns: int | None
    error_ns: int | None


class Record(NamedTuple):
    """One file."""

    path: Path
    job: str
    reason: str
    host: str
    pid: int
    rank: int
    size: int
    clock: Clock
    comms: tuple[Comm, ...]
