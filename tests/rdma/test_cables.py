"""Cables that are bent and cut, and ports that change, under a job that runs.

The job goes on with right results, or every rank is told who is lost, and by which port. Nothing
here depends on how long a call takes: a bent cable stays so until all calls were made, and what
comes back is waited for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from batch_job import LENGTHS, Job, revived, whole
from rack import Rack
from ranks import Ranks

BATCHES = str(Path(__file__).with_name("batches.py"))


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
