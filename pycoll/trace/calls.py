"""Calls: what ranks say of one call, brought together by communicator and number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pycoll.errors import UsageError, quoted
from pycoll.trace.job import Job
from pycoll.trace.record import Event, Link, Record


@dataclass(eq=False)
class Communicator:
    """One communicator, as all its ranks saw it. Ranks are those of the job.

    Attributes:
        id: By which files mean the same one.
        name: For people; two of one name have the beginning of their ids in it.
        ranks: By rank of the communicator.
        hosts: Number of the host of each.
        calls: Collectives by number: the event of each rank that has made it.
        transfers: Events of messages, by rank.
        rails: Names, by rank that has a record.
        links: By rank that has a record.
        taken_ns: By rank and number of a collective: from the end of the rank's last call before
            it, on any communicator, to its arrival.
    """

    id: str
    name: str
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    calls: dict[int, dict[int, Event]] = field(default_factory=dict)
    transfers: dict[int, list[Event]] = field(default_factory=dict)
    rails: dict[int, tuple[str, ...]] = field(default_factory=dict)
    links: dict[int, tuple[Link, ...]] = field(default_factory=dict)
    taken_ns: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def last(self, rank: int) -> int:
        """Number of the last call of a rank; -1 if it has made none."""
        return self._last.get(rank, -1)

    def __post_init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, rank: int, events: tuple[Event, ...]) -> None:
        """Take in what one rank says."""
        for event in events:
            if event.transfer:
                self.transfers.setdefault(rank, []).append(event)
            else:
                self.calls.setdefault(event.seq, {})[rank] = event
                self._last[rank] = max(self.last(rank), event.seq)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield the rank and the event of all calls and messages."""
        for events in self.calls.values():
            yield from events.items()
        for rank, messages in self.transfers.items():
            for event in messages:
                yield rank, event

    def only(self, seq: int) -> Communicator:
        """Return this communicator with one call."""
        one = Communicator(self.id, self.name, self.ranks, self.hosts)
        one.rails, one.calls = self.rails, {seq: self.calls[seq]}
        one.taken_ns = self.taken_ns
        one._last = self._last
        return one


def match(job: Job) -> list[Communicator]:
    """Return the communicators of all files, the largest first."""
    found: dict[str, Communicator] = {}
    for rank, record in sorted(job.records.items()):
        for comm in record.comms:
            one = found.get(comm.id)
            if one is None:
                one = Communicator(comm.id, comm.name, comm.ranks, comm.hosts)
                found[comm.id] = one
            one.rails[rank], one.links[rank] = comm.rails, comm.links
            one.add(rank, comm.events)
        for comm_id, seq, taken in _taken(record):
            found[comm_id].taken_ns[rank, seq] = taken
    names = Counter(one.name for one in found.values())
    for one in found.values():
        one.calls = dict(sorted(one.calls.items()))
        if names[one.name] > 1:
            one.name = f"{one.name} #{one.id[:4]}"
    return sorted(found.values(), key=lambda one: -one.size)


def _taken(record: Record) -> Iterator[tuple[str, int, int]]:
    """Yield how long a rank took to come to each collective; of the first nobody knows."""
    events = [(e.arrived_ns, comm.id, e) for comm in record.comms for e in comm.events]
    ended: int | None = None
    for at, comm_id, event in sorted(events, key=lambda one: one[0]):
        if ended is not None and not event.transfer:
            yield comm_id, event.seq, max(0, at - ended)
        if event.finished_ns is not None:
            ended = max(ended or 0, event.finished_ns)


def choose(comms: list[Communicator], name: str | None, seq: int | None) -> list[Communicator]:
    """Return the communicators of a name or id, or all; with one call of them, or all.

    Raises:
        UsageError: There is none of that name, or none has that call.
    """
    if name is not None:
        known = ", ".join(one.name for one in comms)
        comms = [one for one in comms if name in (one.name, one.id, one.name.partition(" #")[0])]
        if not comms:
            raise UsageError(f"--comm is {quoted(name)}, want one of {known}")
    if seq is None:
        return comms
    having = [one.only(seq) for one in comms if seq in one.calls]
    if not having:
        seqs = [number for one in comms for number in one.calls]
        want = f"{min(seqs)} to {max(seqs)}" if seqs else "none: the files have no calls"
        raise UsageError(f"--call is {seq}, want {want}")
    return having
