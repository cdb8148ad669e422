"""Clocks: from the clock of each host to that of one rank, and how wrong that may be."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.trace.job import Job
from pycoll.trace.record import Record
from pycoll.trace.words import duration, named


@dataclass(frozen=True)
class Clocks:
    """Where the times of a rank lie on the common clock, the CLOCK_MONOTONIC of a rank.

    Attributes:
        reference: That rank.
        shift_ns: Of each rank: what is added to its times.
        host: Of each rank: a number, alike for ranks that share a clock.
        names: Of each rank that has a record: its host's name.
        errors_ns: Of each host: how wrong its shift may be; None: it was not aligned, and lies
            by the time of day.
        notes: What the user should know of them.
    """

    reference: int
    shift_ns: dict[int, int]
    host: dict[int, int]
    names: dict[int, str]
    errors_ns: dict[int, int | None]
    notes: tuple[str, ...]

    @property
    def error_ns(self) -> int | None:
        """The largest error of a host; None if any was not aligned."""
        known = [error for error in self.errors_ns.values() if error is not None]
        return max(known) if len(known) == len(self.errors_ns) else None

    def between_ns(self, a: int, b: int) -> int | None:
        """How wrong a difference between times of two ranks may be; None: nobody knows."""
        if self.host[a] == self.host[b]:
            return 0
        one, other = self.errors_ns[self.host[a]], self.errors_ns[self.host[b]]
        return None if one is None or other is None else one + other

    def written_ns(self, record: Record) -> int:
        """When a file was written."""
        return record.clock.monotonic_ns + self.shift_ns[record.rank]


def align(job: Job) -> Clocks:
    """Find the shift of each rank: that of its host's best aligned rank."""
    host = _hosts(job)
    reference, records = _by_one_reference(job)
    members: dict[int, list[Record]] = {}
    for rank, record in sorted(records.items()):
        members.setdefault(host[rank], []).append(record)
    best = {number: min(records, key=_error) for number, records in members.items()}
    notes = [note for records in members.values() for note in _contradictions(records)]
    shifts: dict[int, int] = {}
    errors: dict[int, int | None] = {}
    if len(best) == 1:  # one clock needs no alignment
        (number, record), *_ = best.items()
        shifts[number], errors[number] = record.clock.offset_ns or 0, 0
        best = {}
    aligned = [record for record in best.values() if record.clock.offset_ns is not None]
    for number, record in best.items():
        if record.clock.offset_ns is not None:
            shifts[number], errors[number] = record.clock.offset_ns, record.clock.error_ns
        else:
            shifts[number], errors[number] = _by_time_of_day(record, aligned or [*best.values()])
            whose = named([r.rank for r in members[number]])
            notes.append(
                f"the clock of {record.host} ({whose}) was not aligned: it lies by the time of "
                "day, and its ranks are not compared with those of other hosts"
            )
    return Clocks(
        reference,
        {rank: shifts[host[rank]] for rank in job.records},
        host,
        {rank: record.host for rank, record in job.records.items()},
        errors,
        tuple(notes),
    )


def _by_one_reference(job: Job) -> tuple[int, dict[int, Record]]:
    """Return to whom most ranks were aligned, and the records; others count as not aligned.

    The control plane has gone over to another rank between the writing of two.
    """
    references = [r.clock.reference for r in job.records.values() if r.clock.reference is not None]
    most = max(sorted(set(references)), key=references.count, default=None)
    return most or 0, {
        rank: r if r.clock.reference == most else _not_aligned(r) for rank, r in job.records.items()
    }


def _not_aligned(r: Record) -> Record:
    return r._replace(clock=r.clock._replace(reference=None, offset_ns=None, error_ns=None))


def _hosts(job: Job) -> dict[int, int]:
    """Return a number for each rank's host; files of ranks that share one say so."""
    leader = {rank: rank for rank in range(job.size)}

    def find(rank: int) -> int:
        while leader[rank] != rank:
            rank = leader[rank]
        return rank

    for record in job.records.values():
        for comm in record.comms:
            first: dict[int, int] = {}
            for rank, number in zip(comm.ranks, comm.hosts, strict=True):
                leader[find(rank)] = find(first.setdefault(number, rank))
    apart = {rank for record in job.records.values() for c in record.comms for rank in c.ranks}
    named_alike: dict[str, int] = {}
    for rank, record in sorted(job.records.items()):
        if rank not in apart:  # no communicator tells: ranks of one name share a host
            leader[find(rank)] = find(named_alike.setdefault(record.host, rank))
    return {rank: find(rank) for rank in range(job.size)}


def _error(record: Record) -> tuple[bool, int, int]:
    return record.clock.offset_ns is None, record.clock.error_ns or 0, record.rank


def _contradictions(records: list[Record]) -> list[str]:
    """Say where ranks of one host, which have one clock, were aligned differently."""
    known = [r for r in records if r.clock.offset_ns is not None]
    low = min(known, key=lambda r: r.clock.offset_ns or 0, default=None)
    high = max(known, key=lambda r: r.clock.offset_ns or 0, default=None)
    if low is None or high is None:
        return []
    apart = (high.clock.offset_ns or 0) - (low.clock.offset_ns or 0)
    allowed = (high.clock.error_ns or 0) + (low.clock.error_ns or 0)
    if apart <= allowed:
        return []
    return [
        f"ranks {low.rank} and {high.rank} share the clock of {low.host}, and their offset_ns are "
        f"{duration(apart)} apart, where their error_ns allow {duration(allowed)}"
    ]


def _by_time_of_day(record: Record, others: list[Record]) -> tuple[int, None]:
    """Return the shift at which the time of day agrees with that of an aligned host."""
    of = min(others, key=lambda r: r.rank)
    here = record.clock.unix_ns - record.clock.monotonic_ns
    there = of.clock.unix_ns - of.clock.monotonic_ns - (of.clock.offset_ns or 0)
    return here - there, None
