"""Cables that are bent and cut, and ports that change, under a job that runs.

The job goes on with right results, or every rank is told who is lost, and by which port. Nothing
here depends on how long a call takes: a bent cable stays so until all calls were made, and what
comes back is waited for.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import SECONDS
from rack import Rack
from ranks import Ranks

BATCHES = str(Path(__file__).with_name("batches.py"))
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


@contextmanager
def job(
    rack: Rack,
    size: int = 2,
    rails: int = 1,
    leave: bool = True,
    collective: str = "allreduce",
) -> Iterator[Job]:
    """Start a job whose paths are all there; in the end every rank must leave in good order.

    Args:
        rack: Its hosts and NICs.
        size: Number of ranks, each on a host of its own.
        rails: NICs of each.
        leave: Whether any rank is left in the end.
        collective: Which call they make.
    """
    argv = [sys.executable, BATCHES, collective, *map(str, LENGTHS)]
    # Less than a test waits: pycoll then says who waits for whom.
    env = {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_TIMEOUT": "100"}
    with Ranks(rack, argv, size, hosts=size, rails=rails, env=env, stdin=True) as ranks:
        running = Job(ranks)
        running.until(whole)
        yield running
        if leave:
            for rank in ranks:
                rank.close_input()
            ranks.finish()


BENT = {
    "loss": {"loss": 0.02},
    "reorder": {"delay": 0.0002, "reorder": 0.05},
    "duplicates": {"duplicate": 0.2},
}


@pytest.mark.parametrize("rails", [1, 2])
def test_results_are_right_over_a_bent_cable(rack: Rack, rails: int) -> None:
    with job(rack, rails=rails) as running:
        for bend in BENT.values():
            rack.nics.shape(0, **bend)
            running.make()
            rack.nics.shape(0)
        running.until(whole)


def test_results_are_right_when_all_cables_are_bent_in_all_ways(rack: Rack) -> None:
    with job(rack, 3) as running:
        for nic in range(3):
            rack.nics.shape(nic, loss=0.01, duplicate=0.05, delay=0.0002, reorder=0.05)
        running.make(len(LENGTHS))
        rack.nics.heal()
        running.until(whole)


@pytest.mark.parametrize("rails", [1, 2])
def test_a_job_outlives_what_happens_to_a_port(rack: Rack, rails: int) -> None:
    nics = rack.nics
    with job(rack, rails=rails) as running:
        begun = running.begin_and_reach(2)
        nics.cut(1)
        nics.mend(1)
        running.end(begun)
        running.until(whole)
        # What is sent in packets of the old size is lost, until its path is made anew.
        begun = running.begin_and_reach(2)
        nics.resize(0, 1500)
        running.end(begun)
        before = running.until(revived)
        # So is what comes from an address that is no more.
        begun = running.begin_and_reach(2)
        nics.readdress(0, 100)
        running.end(begun)
        running.until_again(before)


def test_a_path_is_made_anew_when_its_address_goes_though_nobody_calls(rack: Rack) -> None:
    with job(rack) as running:
        before = running.make()
        rack.nics.readdress(0, 100)
        running.until_again(before, calls=0)
        running.make()


@pytest.mark.parametrize("rails", [1, 2])
def test_what_no_packet_can_carry_any_more_goes_by_a_new_path(rack: Rack, rails: int) -> None:
    """The device tries for ever, as no try reaches the wire, and the other rank sends nothing that
    would fail there: nobody but this rank can see it."""
    with job(rack, rails=rails, collective="broadcast") as running:
        before = running.make()
        for nic in rack.rails(0, rails):
            rack.nics.resize(nic, 1500)
        running.make()
        running.until_again(before)


def test_the_other_rail_carries_all_while_one_is_cut(rack: Rack) -> None:
    with job(rack, rails=2) as running:
        begun = running.begin_and_reach(2)
        rack.nics.cut(0)
        running.end(begun)
        running.until(lambda state: state["live"] == 1)
        rack.nics.mend(0)
        before = running.until(revived)[0]["bytes"]
        after = running.make()[0]["bytes"]
        assert all(b < a for b, a in zip(before[:2], after[:2], strict=True)), (before, after)


@pytest.mark.parametrize("rails", [1, 2])
def test_without_any_rail_every_rank_is_told_who_is_lost_and_by_which_port(
    rack: Rack, rails: int
) -> None:
    cut = rack.rails(1, rails)
    with job(rack, rails=rails, leave=False) as running:
        running.begin_and_reach(2, of=1 << 20)
        for nic in cut:
            rack.nics.cut(nic)
        said = [running.said(rank) for rank in (0, 1)]
        assert running.ranks.wait() == [3, 3]
    assert [one.get("error") for one in said] == ["PeerLostError"] * 2, said
    for text in (one["text"] for one in said):
        # Of two ranks without a path each is lost to the other: whoever sees it first, says so.
        assert re.match(r"rank (0 .* is lost to rank 1|1 .* is lost to rank 0): ", text), text
        assert "no connection to it is left" in text or "it closed its connection" in text, text
        assert any(rack.nics.device(nic) in text for nic in cut), text
