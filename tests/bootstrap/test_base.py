from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.errors import CollectiveTimeout


@pytest.fixture
def bootstraps(no_leak: None, stars: Callable[..., list]):
    made = [Bootstrap("environment", star, 30.0) for star in stars(3)]
    yield made
    for bootstrap in made:
        bootstrap.close()
        bootstrap.close()
    for bootstrap in made:  # who serves the others ends when the last of them has left
        bootstrap.control._plane.join()


def test_allgathers_and_barriers_in_turn(bootstraps, together):
    def work(bootstrap: Bootstrap) -> list[list[bytes]]:
        first = bootstrap.allgather(b"%d" % bootstrap.rank)
        bootstrap.barrier()
        return [first, bootstrap.allgather(b"", timeout=30)]

    want = [[b"0", b"1", b"2"], [b"", b"", b""]]
    assert together(*[lambda b=b: work(b) for b in bootstraps]) == [want] * 3


def test_a_barrier_names_who_is_missing(bootstraps, monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control.GRACE_SECONDS", 30.0)  # rank 0 may be late
    with pytest.raises(CollectiveTimeout, match=r"ranks 1, 2 did not come within 0\.1 s$"):
        bootstraps[0].barrier(timeout=0.1)


def test_a_rank_is_described(bootstraps):
    where = f"process {os.getpid()} on {socket.gethostname()}"
    assert bootstraps[0].describe(2) == f"rank 2 ({where})"


def test_local_ranks_count_within_a_host(stars, no_leak):
    star = stars(2)
    hosts = [Member(1, 2, "a/1"), Member(1, 2, "b/1"), Member(3, 2, "a/1"), Member(4, 2, "b/1")]
    placed = Bootstrap("mpi4py", star[1]._replace(members=tuple(hosts), rank=3, size=4), 1.0)
    assert (placed.local_rank, placed.local_size) == (1, 2)
    placed.close()
    star[0].close()
