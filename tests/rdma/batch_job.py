"""A job whose ranks make calls as often as they are told, and say how their paths are.

What each rank runs is batches.py, or reads and writes the same lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from command import SECONDS
from ranks import Ranks

#: Of the arrays, in elements: in the line itself, in a slot, and cut over the rails.
LENGTHS = (1, 100, 4096, 32768)
CALLS = 3 * len(LENGTHS)

State = dict[str, Any]


class Job:
    """A running job: a rank on each host."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._read = [0] * len(ranks)
        self._calls = 0

    def begin_and_reach(self, number: int, of: int = CALLS) -> int:
        """Have all ranks make calls, and wait until rank 0 is in one of them; return how many."""
        for rank in self.ranks:
            rank.send(f"{of}\n")
        self.ranks[0].until(f"call {self._calls + number}\n")
        return of

    def said(self, rank: int) -> dict[str, Any]:
        """Return what a rank says after its calls."""
        while True:
            line = self.ranks[rank].line(self._read[rank], SECONDS)
            self._read[rank] += 1
            if not line.startswith("call "):
                found: dict[str, Any] = json.loads(line)
                return found

    def end(self, calls: int) -> list[State]:
        """Wait until that many calls were made; return the state of each rank's paths."""
        states = [self.said(rank) for rank in range(len(self.ranks))]
        if any("error" in state for state in states):
            pytest.fail("\n".join(map(repr, states)))  # in full: what is shown of an assert is cut
        self._calls += calls
        return states

    def make(self, calls: int = CALLS) -> list[State]:
        """Make calls, from their beginning to their end."""
        return self.end(self.begin_and_reach(0, calls))

    def ask(self) -> list[State]:
        """Return the state of each rank's paths; nobody calls for that."""
        for rank in self.ranks:
            rank.send("0\n")
        return self.end(0)

    def until(self, holds: Callable[[State], bool]) -> list[State]:
        """Make calls until it holds of every rank's paths; return their states."""
        return self._until_all(len(LENGTHS), lambda states: all(map(holds, states)))

    def until_again(self, before: list[State], calls: int = len(LENGTHS)) -> list[State]:
        """Make calls until every rank's paths are whole, and have come back since `before`."""
        return self._until_all(
            calls,
            lambda states: all(
                whole(now) and now["revivals"] > then["revivals"]
                for now, then in zip(states, before, strict=True)
            ),
        )

    def _until_all(self, calls: int, hold: Callable[[list[State]], bool]) -> list[State]:
        """Make calls until it holds of all ranks' paths; return their states."""
        deadline = time.monotonic() + SECONDS
        while not hold(states := self.make(calls) if calls else self.ask()):
            assert time.monotonic() < deadline, states
        return states


def whole(state: State) -> bool:
    """Every path carries messages."""
    found: bool = state["live"] == state["connections"] > 0
    return found


def revived(state: State) -> bool:
    """The same, and one has failed and come back."""
    return whole(state) and state["revivals"] > 0
