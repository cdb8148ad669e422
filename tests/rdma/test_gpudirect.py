"""GPUDirect RDMA by nvidia_peermem on real verbs: the driver registers memory of a GPU by its
address, writes it, and reads it to flush.

Only CUDA is a stand-in, whose device memory is the host's, so that the driver needs no module for
it. So nothing here says what a GPU does with what comes over PCIe. What is counted, and faults that
are planted, are in test_gpudirect_faults.py.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import fakecuda_library
import pytest
from batch_job import LENGTHS, Job, State, revived, whole
from device_job import FLUSHES, device_ranks, unstaged
from rack import Rack

#: Calls drawn at random. A guest makes some ten in a second: of 10000 it takes many minutes.
CALLS = int(os.environ.get("RDMA_CALLS", "1000"))

pytestmark = pytest.mark.skipif(
    bool(fakecuda_library.lack()), reason=fakecuda_library.lack() or "-"
)


@pytest.mark.timeout(1200)  # minutes, and more where a machine does other things too
@pytest.mark.parametrize(
    ("flush", "size", "hosts", "rails", "what"),
    [
        *[("read", 2, 2, 1, "every"), ("read", 2, 2, 2, "every"), ("read", 3, 3, 2, "every")],
        *[("read", 3, 2, 1, "every"), ("driver", 2, 2, 1, "every"), ("none", 2, 2, 2, "every")],
        *[("read", 2, 2, 2, f"mixed {CALLS}"), ("read", 3, 2, 2, f"mixed {CALLS // 5}")],
        *[("none", 3, 3, 1, f"mixed {CALLS // 10}"), ("driver", 2, 2, 1, f"mixed {CALLS // 10}")],
        ("read", 5, 2, 1, f"mixed {CALLS // 10}"),
    ],
)
def test_calls(rack: Rack, flush: str, size: int, hosts: int, rails: int, what: str) -> None:
    faulthandler.cancel_dump_traceback_later()  # all threads after two minutes, which are no news
    settings = {"PYCOLL_VERBS": "timeout=19"}  # as in test_verbs.py
    with device_ranks(rack, what.split(), size, flush, settings, hosts=hosts, rails=rails) as ranks:
        said = [json.loads(text) for text in ranks.finish(1100)]
    for rank, found in enumerate(said):
        near = [host == ranks.hosts[rank] for host in ranks.hosts]
        assert found["reach"] == ["cuda" if here else "verbs+gpu" for here in near]
        assert set(found["lacks"]) == {""}
        assert found["gpudirect"] == f"on: peermem, {FLUSHES[flush][1]}"
        assert unstaged(found), found
        assert (found["gpu_flushes"] == found["gpu_flushed"] == 0) == (flush == "none")
        assert sum(1 for nbytes in found["bytes"] if nbytes) == rails
    assert rack.nics.objects() == []


@contextmanager
def job(
    rack: Rack, size: int = 2, rails: int = 1, leave: bool = True, forks: bool = False
) -> Iterator[Job]:
    """Start a job whose paths are all there, as in test_cables.py; reads flush."""
    settings = {"PYCOLL_TIMEOUT": "100", "FORKS": "1" if forks else ""}
    with device_ranks(
        rack, list(map(str, LENGTHS)), size, "read", settings, hosts=size, rails=rails, stdin=True
    ) as ranks:
        running = Job(ranks)
        running.until(whole)
        yield running
        if leave:
            for rank in ranks:
                rank.close_input()
            ranks.finish()
            assert rack.nics.objects() == []


def all_pairs(state: State, rails: int) -> bool:
    """Whether there are the queue pairs of the connections, and one for each rail that reads."""
    return bool(state["queue_pairs"] == state["connections"] + rails)


def test_the_other_rail_carries_all_while_one_is_cut(rack: Rack) -> None:
    with job(rack, rails=2) as running:
        begun = running.begin_and_reach(2)
        rack.nics.cut(0)
        running.end(begun)
        running.until(lambda state: state["live"] == 1)
        rack.nics.mend(0)
        before = running.until(revived)
        after = running.make()
        for then, now in zip(before, after, strict=True):
            assert all(b < a for b, a in zip(then["bytes"][:2], now["bytes"][:2], strict=True))
            assert unstaged(now)


@pytest.mark.parametrize("rails", [1, 2])
def test_a_rank_outlives_that_its_own_port_goes_and_comes_back(rack: Rack, rails: int) -> None:
    """A queue pair that is connected to itself fails with the port, and is made anew."""
    with job(rack, rails=rails) as running:
        states = running.make(len(LENGTHS))
        for turn in range(4):
            begun = running.begin_and_reach(turn % len(LENGTHS))
            rack.nics.disable(0)
            rack.nics.enable(0)
            running.end(begun)
            states = running.until_again(states)
        states = running.until(lambda state: whole(state) and all_pairs(state, rails))
        assert all(map(unstaged, states))


def test_results_are_right_over_a_bent_cable(rack: Rack) -> None:
    with job(rack, rails=2) as running:
        rack.nics.shape(0, loss=0.01, duplicate=0.05, delay=0.0002, reorder=0.05)
        running.make()
        rack.nics.shape(0)
        assert all(map(unstaged, running.until(whole)))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_killed(rack: Rack, victim: int) -> None:
    with job(rack, 3, leave=False) as running:
        running.begin_and_reach(2, of=1 << 20)
        running.ranks[victim].signal(signal.SIGKILL)
        others = [rank for rank in range(3) if rank != victim]
        said = [running.said(rank) for rank in others]
        ended = running.ranks.wait()
    assert ended == [-signal.SIGKILL if rank == victim else 3 for rank in range(3)]
    for one in said:
        assert one.get("error") == "PeerLostError", said
        assert one["text"].startswith(f"rank {victim} "), said
    assert rack.nics.objects() == []


def test_ranks_fork_while_calls_go_on(rack: Rack) -> None:
    """A child has neither the GPU nor the cards, and takes nothing of them along as it ends."""
    with job(rack, rails=2, forks=True) as running:
        states = running.make(4 * len(LENGTHS))
        assert all(map(unstaged, states))
        assert all(state["failures"] == 0 < state["gpu_flushed"] for state in states)
