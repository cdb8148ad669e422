"""Stops: calls that some ranks never reached, or that have not finished, and who is not there.

Files are written at different moments, so that a rank is behind only if another one had been in a
call for `PATIENCE_NS` when the rank's file was written without it; or if that call failed.
"""

from __future__ import annotations

from typing import Any

from pycoll.trace.calls import Communicator
from pycoll.trace.clocks import Clocks
from pycoll.trace.finding import Finding
from pycoll.trace.job import Job
from pycoll.trace.record import Event
from pycoll.trace.words import duration, named

#: How long a call may have been under way before it is said that somebody is missing.
PATIENCE_NS = 1_000_000_000

#: What calls raise because another one failed before.
CONSEQUENCES = {"BrokenError", "ClosedError", "RevokedError"}


class Stops:
    """What one communicator's calls say of ranks that stopped."""

    def __init__(self, job: Job, comms: list[Communicator], comm: Communicator, clocks: Clocks):
        self._job, self._comms, self._comm, self._clocks = job, comms, comm, clocks
        self.gone: set[int] = set()  #: ranks without a file that are explained here
        self._present = [rank for rank in comm.ranks if rank in job.records]
        self._first: dict[int, int] = {}  #: by rank: the first call that it has not reached

    def findings(self, disagreed: set[int]) -> list[Finding]:
        """Name who stopped; else who was lost; else what has not finished, or failed.

        Args:
            disagreed: Numbers of calls in which ranks disagreed. Where one of them failed, that
                explains all that came after it.
        """
        broken = [seq for seq in disagreed if self._failed(seq)]
        end = min(broken, default=None)
        behind: dict[int, list[int]] = {}
        for rank in self._present:
            seq = self._behind(rank)
            if seq is not None and (end is None or seq < end):
                behind.setdefault(seq, []).append(rank)
        if behind:
            seq = min(behind)
            return [self._stopped(seq, behind[seq])]
        stuck = self._stuck()
        if stuck is None:
            return self._messages()
        if end is not None and stuck >= end:
            return []
        if lost := self._lost(stuck):
            self.gone |= lost
            return [self._lost_finding(stuck, lost)]
        return [self._stuck_finding(stuck)]

    def _behind(self, rank: int) -> int | None:
        """Return the number of the call in which others waited for a rank that did not come."""
        last = self._comm.last(rank)
        if rank in self._comm.links:
            seq = next((number for number in self._comm.calls if number > last), None)
        else:  # it may have closed this communicator, unless somebody waits there
            seq = next((number for number in self._comm.calls if self._failed(number)), None)
        if seq is None:
            return None
        written = self._clocks.written_ns(self._job.records[rank])
        for other, event in self._comm.calls[seq].items():
            error = self._clocks.between_ns(rank, other) or 0
            passed = written - event.arrived_ns - self._clocks.shift_ns[other] - error
            failed = event.error and event.error not in CONSEQUENCES
            if passed > PATIENCE_NS or (failed and passed > 0):
                return seq
        return None

    def _failed(self, seq: int) -> bool:
        """Tell whether a call failed of itself, or was not finished for long, on any rank."""
        return any(
            (event.error and event.error not in CONSEQUENCES)
            or self._under_way(rank, event) > PATIENCE_NS
            for rank, event in self._comm.calls[seq].items()
        )

    def _stuck(self) -> int | None:
        """Return the first call that failed, or was not finished for long."""
        return next((seq for seq in self._comm.calls if self._failed(seq)), None)

    def _under_way(self, rank: int, event: Event) -> int:
        """Return for how long a call had been under way when its file was written."""
        if event.finished_ns is not None:
            return 0
        return self._job.records[rank].clock.monotonic_ns - event.arrived_ns

    def _lost(self, seq: int) -> set[int]:
        """Return the ranks without a file for which the others waited in a call."""
        absent = set(self._comm.ranks) - set(self._present)
        events = self._comm.calls[seq].values()
        waited = {self._comm.ranks[e.peer] for e in events if e.peer is not None}
        lost_a_peer = any(event.error == "PeerLostError" for event in events)
        return (absent & waited) or (absent if lost_a_peer else set())

    def _messages(self) -> list[Finding]:
        """Name the ranks that wait in a message, or in which one failed."""
        found: dict[int, Event] = {}
        for rank, events in self._comm.transfers.items():
            for event in events:
                failed = event.error and event.error not in CONSEQUENCES
                if failed or self._under_way(rank, event) > PATIENCE_NS:
                    found.setdefault(rank, event)
        if not found:
            return []
        lines = []
        for rank, event in sorted(found.items()):
            at = f" at {event.line}" if event.line else ""
            whom = "" if event.peer is None else f", for rank {self._comm.ranks[event.peer]}"
            under_way = duration(self._under_way(rank, event))
            end = f"ended in {event.error}" if event.error else f"has waited since {under_way}"
            lines.append(f"rank {rank}: {event.kind}{at} of {self._comm.name} {end}{whom}")
        kind = "error" if any(event.error for event in found.values()) else "stuck"
        peers = {self._comm.ranks[e.peer] for e in found.values() if e.peer is not None}
        details = {
            "comm": self._comm.id,
            "errors": {str(rank): e.error for rank, e in found.items() if e.error},
            "waited_for": sorted(peers),
        }
        return [Finding(kind, tuple(sorted(found)), "\n".join(lines), details)]

    def _stopped(self, seq: int, behind: list[int]) -> Finding:
        events = self._comm.calls[seq]
        there = [rank for rank in self._present if rank in events]
        whom = behind if len(behind) <= len(there) else there
        event = next(iter(events.values()))
        lines = [
            f"{named(behind)} never reached {_call(event)} {seq} of {self._comm.name}, in which "
            f"{named(there)} {'was' if len(there) == 1 else 'were'}: {self._states(seq, there)}"
        ]
        lines += [f"rank {rank} {self._last(rank)}" for rank in whom[:4] if rank in behind]
        absent = [rank for rank in self._comm.ranks if rank not in self._present]
        if absent:
            lines.append(f"{named(absent)} left no file")
        return self._finding("stopped", whom, lines, seq, missing=behind, there=there)

    def _lost_finding(self, seq: int, lost: set[int]) -> Finding:
        events = self._comm.calls[seq]
        there = sorted(events)
        lines = [
            f"{named(lost)} left no file, and the others waited in "
            f"{_call(next(iter(events.values())))} {seq} of {self._comm.name}: "
            f"{self._states(seq, there)}",
            "its process has died, or answered no signal",
        ]
        return self._finding("lost", sorted(lost), lines, seq, missing=sorted(lost), there=there)

    def _stuck_finding(self, seq: int) -> Finding:
        events = self._comm.calls[seq]
        there = sorted(events)
        failed = [rank for rank in there if events[rank].error]
        kind = "error" if failed else "stuck"
        whom = failed or [
            rank for rank in there if self._under_way(rank, events[rank]) > PATIENCE_NS
        ]
        call = f"{_call(next(iter(events.values())))} {seq} of {self._comm.name}"
        lines = [f"{call} {'failed' if failed else 'has not finished'}: {self._states(seq, there)}"]
        if reasons := {self._job.records[rank].reason for rank in whom}:
            said = sorted(reason for reason in reasons if reason not in ("SIGUSR1", "record()"))
            lines += said[:2]
        return self._finding(kind, whom, lines, seq, missing=[], there=there)

    def _finding(
        self,
        kind: str,
        whom: list[int],
        lines: list[str],
        seq: int,
        *,
        missing: list[int],
        there: list[int],
    ) -> Finding:
        events = self._comm.calls[seq]
        details: dict[str, Any] = {
            "comm": self._comm.id,
            "seq": seq,
            "call": next(iter(events.values())).call,
            "missing": missing,
            "in_it": [rank for rank in there if events[rank].finished_ns is None],
            "errors": {str(r): events[r].error for r in there if events[r].error},
            "waited_for": sorted(
                {self._comm.ranks[e.peer] for e in events.values() if e.peer is not None}
            ),
            "last": {str(r): self._last_details(r) for r in missing if r in self._present},
        }
        return Finding(kind, tuple(whom), "\n".join(lines), details)

    def _states(self, seq: int, there: list[int]) -> str:
        """Return what the ranks in a call do there: wait, have finished, or failed."""
        events = self._comm.calls[seq]
        waiting = [rank for rank in there if events[rank].finished_ns is None]
        failed = [rank for rank in there if events[rank].error and rank not in waiting]
        done = [rank for rank in there if rank not in waiting and rank not in failed]
        said = []
        if waiting:
            longest = max(self._under_way(rank, events[rank]) for rank in waiting)
            said.append(f"{named(waiting)} waited there since {duration(longest)}")
        if failed:
            errors = sorted({events[rank].error for rank in failed})
            said.append(f"on {named(failed)} it ended in {' or '.join(errors)}")
        if done:
            said.append(f"on {named(done)} it finished")
        peers = {self._comm.ranks[e.peer] for e in events.values() if e.peer is not None}
        if peers and (waiting or failed):
            said.append(f"waits were for {named(peers)}")
        return ", ".join(said)

    def _last(self, rank: int) -> str:
        """Say where a rank that is missing was last."""
        last = self._comm.last(rank)
        text = f"has made no call of {self._comm.name}"
        if last >= 0 and rank in self._comm.calls.get(last, {}):
            event = self._comm.calls[last][rank]
            at = f" at {event.line}" if event.line else ""
            end = f"ended in {event.error}" if event.error else "finished"
            end = end if event.finished_ns is not None else "has not finished"
            text = f"stopped after {_call(event)} {last}{at}, which {end}"
        return text + self._elsewhere(rank)

    def _elsewhere(self, rank: int) -> str:
        """Say in which calls of other communicators a rank is."""
        said = [
            f"{_call(event)} {event.seq} of {comm.name}{f' at {event.line}' if event.line else ''}"
            for comm in self._comms
            if comm is not self._comm
            for who, event in comm.events()
            if who == rank and event.finished_ns is None
        ]
        said += [
            f"{_call(event)}{f' at {event.line}' if event.line else ''}"
            for event in self._comm.transfers.get(rank, [])
            if event.finished_ns is None
        ]
        return f"; it was in {' and '.join(said[:2])}" if said else ""

    def _last_details(self, rank: int) -> dict[str, Any] | None:
        last = self._comm.last(rank)
        if last < 0 or rank not in self._comm.calls.get(last, {}):
            return None
        event = self._comm.calls[last][rank]
        return {"seq": last, "call": event.call, "line": event.line, "error": event.error}


def _call(event: Event) -> str:
    return event.kind


def missing(job: Job, explained: set[int]) -> list[Finding]:
    """Name the ranks of which there is no file, but for those that are explained."""
    ranks = [rank for rank in job.missing if rank not in explained]
    if not ranks:
        return []
    bad = [str(path) for path, _ in job.bad]
    it = "it" if len(ranks) == 1 else "they"
    text = f"there is no file of {named(ranks)}: what {it} did is not known"
    if bad:
        text += f"; {', '.join(bad[:3])} could not be read"
    return [Finding("missing", tuple(ranks), text)]
