"""A barrier that lets someone through too early is wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pycoll.benchmark.barrier import BarrierProblem, clock


def check(run, ranks=4):
    """Check a barrier of threads; returns what each found."""
    arrivals = [BarrierProblem(rank, ranks) for rank in range(ranks)]
    together = threading.Barrier(ranks)
    places = [0.0] * ranks
    found = [0] * ranks
    nothing = np.empty(0, "uint8")

    def rank(number):
        def gather(value):
            places[number] = value
            together.wait()
            all_of_them = list(places)
            together.wait()
            return all_of_them

        found[number] = arrivals[number].check(run, nothing, nothing, gather)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_barrier_that_holds_is_right():
    barrier = threading.Barrier(4)
    assert check(barrier.wait) == [0] * 4


def test_a_barrier_that_holds_nobody_is_found_out():
    # Ranks come late by chance: that none leaves before another comes is all but impossible.
    assert sum(sum(check(lambda: None)) for _ in range(20)) > 0


def test_ranks_of_one_kernel_share_a_clock():
    assert clock() == clock() >= 0


@pytest.mark.parametrize("ranks", [1])
def test_one_rank_waits_for_nobody(ranks):
    assert check(lambda: None, ranks) == [0]
