"""What is said of hosts that have more to do than cores."""

from __future__ import annotations

import subprocess
import sys

from pycoll.benchmark.oversubscription import Location, foreign, warnings


def locations(host, ranks, cores, clock=1.0):
    return [Location(host, clock, frozenset(cores)) for _ in range(ranks)]


def test_a_core_for_each_is_nothing_to_say():
    assert warnings(locations("a", 4, range(4)), [0] * 4, 4) == []


def test_more_ranks_than_cores_take_turns():
    (said,) = warnings(locations("a", 5, range(4)), [0] * 5, 4)
    assert said.startswith("5 ranks share 4 cores of a: they take turns")


def test_ranks_that_are_bound_to_one_core_each_share_none():
    bound = [Location("a", 1.0, frozenset({core})) for core in range(4)]
    assert warnings(bound, [0] * 4, 4) == []
    (said,) = warnings(bound[:1] * 2, [0] * 2, 4)
    assert said.startswith("2 ranks share 1 core of a: ")


def test_others_matter_once_they_and_the_ranks_are_more_than_the_cores():
    assert warnings(locations("a", 2, range(4)), [2, 0], 4) == []
    (said,) = warnings(locations("a", 2, range(4)), [3, 0], 4)
    assert said.startswith("3 other processes want a core of a beside 2 ranks on 4 cores")
    (said,) = warnings(locations("a", 4, range(4)), [1, 0, 0, 0], 4)
    assert said.startswith("1 other process wants a core of a beside 4 ranks")


def test_of_a_container_the_hosts_other_cores_count():
    assert warnings(locations("a", 2, range(2)), [20, 0], 64) == []


def test_every_host_is_looked_at_and_namespaces_of_one_kernel_are_one():
    both = locations("a", 3, range(2)) + locations("b", 2, range(2), clock=2.0)
    assert [said.partition(":")[0] for said in warnings(both, [0] * 5, 2)] == [
        "3 ranks share 2 cores of a"
    ]
    spaces = locations("a", 2, range(2)) + locations("b", 2, range(2))
    assert warnings(spaces, [0] * 4, 2)[0].startswith("4 ranks share 2 cores of a")


def test_a_process_that_burns_a_core_is_seen():
    burning = [
        subprocess.Popen(
            [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for process in burning:
            process.stdout.readline()  # it runs
        assert foreign() >= 1
    finally:
        for process in burning:
            process.kill()
            process.communicate()
