"""Kinds: the table of calls by collective and algorithm."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from pycoll.benchmark.operation import OPERATIONS
from pycoll.trace.calls import Communicator
from pycoll.trace.record import Event


@dataclass
class Kind:
    """One row. What has no beginning, or no end, has no duration and counts among calls only.

    Attributes:
        call, algorithm: Which.
        calls: Number of calls, each once for all its ranks; messages count on each rank.
        nbytes: Bytes of those calls, each once.
        durations_ns: Of all ranks, sorted.
        crossed: Sum over ranks and calls of bytes times crossings, see `busbw`.
        waited_ns: Sum over ranks.
    """

    call: str
    algorithm: str
    calls: int = 0
    nbytes: int = 0
    durations_ns: list[int] = field(default_factory=list)
    crossed: float = 0.0
    waited_ns: int = 0

    @property
    def median_ns(self) -> float | None:
        """Median duration."""
        return statistics.median(self.durations_ns) if self.durations_ns else None

    @property
    def p99_ns(self) -> int | None:
        """The duration that 99 of 100 do not exceed."""
        found = self.durations_ns
        return found[math.ceil(0.99 * len(found)) - 1] if found else None

    @property
    def busbw(self) -> float | None:
        """GB/s as nccl-tests counts them: bytes times crossings over the time, of all calls."""
        total = sum(self.durations_ns)
        return self.crossed / total if total and self.crossed else None

    @property
    def waiting(self) -> float | None:
        """Part of the time in which ranks waited for others."""
        total = sum(self.durations_ns)
        return min(1.0, self.waited_ns / total) if total else None

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "call": self.call,
            "algorithm": self.algorithm,
            "calls": self.calls,
            "nbytes": self.nbytes,
            "median_ns": self.median_ns,
            "p99_ns": self.p99_ns,
            "busbw_GBps": None if self.busbw is None else round(self.busbw, 4),
            "waiting": None if self.waiting is None else round(self.waiting, 4),
        }


def kinds(comms: list[Communicator]) -> list[Kind]:
    """Return the rows, those with the most time first."""
    found: dict[tuple[str, str], Kind] = {}
    counted: dict[tuple[str, str], set[tuple[str, int, int]]] = defaultdict(set)
    for comm in comms:
        for rank, event in comm.events():
            key = event.kind, event.algorithm
            row = found.setdefault(key, Kind(*key))
            # A collective is one call on all ranks, a message one on each.
            call = comm.id, event.seq, rank if event.transfer else -1
            if call not in counted[key]:
                counted[key].add(call)
                row.calls += 1
                row.nbytes += event.nbytes
            _add(row, event, comm.size)
    for row in found.values():
        row.durations_ns.sort()
    return sorted(found.values(), key=lambda row: -sum(row.durations_ns))


def _add(row: Kind, event: Event, size: int) -> None:
    if event.entered_ns is None or event.finished_ns is None or event.error:
        return
    operation = OPERATIONS.get(event.kind)
    crossings = 1.0 if operation is None or operation.between_two else operation.crossings(size)
    row.durations_ns.append(event.finished_ns - event.entered_ns)
    row.crossed += event.nbytes * crossings
    row.waited_ns += event.waited_ns
