"""Analysis: all that the files of a job say, and what of it is worth naming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pycoll.trace.calls import Communicator, choose, match
from pycoll.trace.clocks import Clocks, align
from pycoll.trace.disagreements import findings as disagreements
from pycoll.trace.finding import Finding
from pycoll.trace.job import Job
from pycoll.trace.kinds import Kind, kinds
from pycoll.trace.lateness import Lateness, lateness
from pycoll.trace.lateness import findings as late
from pycoll.trace.links import Wire, wires
from pycoll.trace.links import findings as links
from pycoll.trace.stops import Stops, missing
from pycoll.trace.waits import Waited, waits

FORMAT = "pycoll-trace-1"  #: of the JSON


@dataclass(frozen=True)
class Analysis:
    """What was found. `comms` are those that were asked for, with the calls asked for."""

    job: Job
    clocks: Clocks
    comms: list[Communicator]
    findings: list[Finding]
    lateness: list[Lateness]
    wires: list[Wire]
    waits: list[Waited]
    kinds: list[Kind]
    seq: int | None  #: the one call that was asked for

    @property
    def notes(self) -> list[str]:
        """What else the user should know: of files and clocks."""
        return [*self.job.notes, *self.clocks.notes]

    def encode(self) -> dict[str, Any]:
        """Return all of it as one JSON object, as docs/trace.md describes it."""
        return {
            "format": FORMAT,
            "job": self.job.name,
            "size": self.job.size,
            "files": [_file(self, rank) for rank in sorted(self.job.records)],
            "bad_files": [{"file": str(path), "why": why} for path, why in self.job.bad],
            "missing": self.job.missing,
            "notes": self.notes,
            "clock_error_ns": self.clocks.error_ns,
            "findings": [finding.encode() for finding in self.findings],
            "communicators": [
                {"id": one.id, "name": one.name, "ranks": list(one.ranks), "calls": len(one.calls)}
                for one in self.comms
            ],
            "lateness": [found.encode() for found in self.lateness],
            "links": [wire.encode() for wire in self.wires],
            "waits": [one.encode() for one in self.waits],
            "kinds": [row.encode() for row in self.kinds],
            "call": None if self.seq is None else calls(self),
        }


def _file(found: Analysis, rank: int) -> dict[str, Any]:
    record = found.job.records[rank]
    return {
        "file": str(record.path),
        "rank": rank,
        "host": record.host,
        "pid": record.pid,
        "reason": record.reason,
        "shift_ns": found.clocks.shift_ns[rank],
        "clock_error_ns": found.clocks.errors_ns[found.clocks.host[rank]],
    }


def calls(found: Analysis) -> list[dict[str, Any]]:
    """Return each rank's row of the calls that are looked at; times are those after the first."""
    rows = []
    for comm in found.comms:
        for seq, events in comm.calls.items():
            shift = found.clocks.shift_ns
            first = min(event.arrived_ns + shift[rank] for rank, event in events.items())
            for rank, event in sorted(events.items()):
                row = {"comm": comm.id, "rank": rank, **event._asdict(), "sent": list(event.sent)}
                row["peer"] = None if event.peer is None else comm.ranks[event.peer]
                row["arrived_after_ns"] = event.arrived_ns + shift[rank] - first
                rows.append(row)
            rows += [
                {"comm": comm.id, "rank": rank, "seq": seq, "call": None}
                for rank in comm.ranks
                if rank not in events
            ]
    return rows


def analyse(job: Job, comm: str | None = None, seq: int | None = None) -> Analysis:
    """Look at the records of a job.

    Args:
        job: Of `pycoll.trace.job.gather`.
        comm: Name or id of the only communicator to look at.
        seq: Number of the only call to look at.

    Returns:
        What they say.

    Raises:
        UsageError: There is no such communicator or call.
    """
    clocks = align(job)
    every = match(job)
    comms = choose(every, comm, seq)
    # One call tells nothing of the noise: all are compared, and one is shown.
    late_to = [lateness(one, clocks) for one in choose(every, comm, None)]
    if seq is not None:
        late_to = [one.only(seq) for one in late_to]
    found: list[Finding] = []
    explained: set[int] = set()
    for one in comms:
        disagreed = disagreements(one)
        stops = Stops(job, every, one, clocks)
        found += disagreed
        found += stops.findings({seq for f in disagreed for seq in f.details["seqs"]})
        explained |= stops.gone
    for standing in late_to:
        found += late(standing)
    carried = []
    for one in comms:
        connections = wires(one, clocks)
        found += links(connections, clocks)
        carried += connections
    found += missing(job, explained)
    return Analysis(job, clocks, comms, found, late_to, carried, waits(comms), kinds(comms), seq)
