"""Waits: for which ranks the others mostly waited."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pycoll.trace.calls import Communicator


@dataclass
class Waited:
    """How long all ranks waited for one; by the longest wait of each call."""

    rank: int
    waited_ns: int = 0
    calls: int = 0
    by: frozenset[int] = frozenset()

    def encode(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "rank": self.rank,
            "waited_ns": self.waited_ns,
            "calls": self.calls,
            "by": sorted(self.by),
        }


def waits(comms: list[Communicator]) -> list[Waited]:
    """Return the ranks that were waited for, the most first. Ranks are those of the job."""
    found: dict[int, Waited] = {}
    by: dict[int, set[int]] = defaultdict(set)
    for comm in comms:
        for rank, event in comm.events():
            if event.peer is not None and event.waited_ns:
                peer = comm.ranks[event.peer]
                one = found.setdefault(peer, Waited(peer))
                one.waited_ns += event.waited_ns
                one.calls += 1
                by[peer].add(rank)
    for rank, one in found.items():
        one.by = frozenset(by[rank])
    return sorted(found.values(), key=lambda one: -one.waited_ns)
