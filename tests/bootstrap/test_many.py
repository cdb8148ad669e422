"""Hundreds of ranks on one machine: they meet, talk, split, die and part; bench/ says how fast."""

from __future__ import annotations

import os
import resource
import signal
import threading

import pytest

from pycoll.bootstrap import detect, job, spawn
from pycoll.bootstrap.control_router import SECONDS, ControlRouter
from pycoll.bootstrap.framing import CALLS, Frame, FrameType
from pycoll.bootstrap.reasons import DIED

RANKS = 256
LONG = 240.0  #: seconds; generous: reached only by a hang


def meet() -> tuple[int, int]:
    """Be a rank with few file descriptors; return the sum of what it was told, and its row rank."""
    # Rank 0 has a connection to each; no other rank holds anything for each.
    size = job.current().size
    most = 80 if job.current().rank else size + 80
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    world = detect()
    told = world.allgather(b"%d" % world.rank)
    rows = world.group([r for r in range(size) if r % 16 == world.rank % 16], "row")
    told += rows.allgather(b"%d" % world.rank)
    rows.close()
    world.barrier()
    world.close()
    return sum(map(int, told)), rows.rank


@pytest.mark.parametrize("size", [256, 257, 512])
def test_processes_meet_and_split(size: int) -> None:
    everyone = sum(range(size))
    outcomes = spawn(meet, size, timeout=LONG)
    for rank, (told, row_rank) in enumerate(outcomes):
        assert told == everyone + sum(r for r in range(size) if r % 16 == rank % 16)
        assert row_rank == rank // 16


def outlive(victim: int) -> tuple[dict[int, str], int]:
    """Be a rank; return whom it has lost, and how many contributions came without them."""
    world = detect()
    heard = threading.Event()
    world.control.attach(lambda *_: heard.set(), lambda *_: None)
    world.barrier()
    if world.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    assert heard.wait(LONG)
    survivors = world.group([r for r in range(world.size) if r != victim], "survivors")
    came = survivors.allgather(b"")  # nobody leaves before all have heard
    lost = world.control.lost()
    survivors.barrier()
    survivors.close()
    world.close()
    return lost, len(came)


@pytest.mark.parametrize("size", [48, 257, 512])
@pytest.mark.parametrize("victim", [0, 31])
def test_the_death_of_one_is_told_to_all_and_the_others_go_on(size: int, victim: int) -> None:
    """Also that of rank 0, which has carried everyone's frames."""
    outcomes = spawn(outlive, size, victim, timeout=LONG, check=False)
    del outcomes[victim]
    assert outcomes == [({victim: DIED}, size - 1)] * (size - 1)


def test_no_rank_holds_what_is_another_ranks() -> None:
    def held() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    outcomes = spawn(held, 40, timeout=LONG)
    assert len({len(names) for names in outcomes[1:]}) == 1  # rank 0 has the listener


def test_256_controls_of_one_process(controls, together) -> None:
    made = controls(RANKS)
    want = [bytes([rank]) * 1000 for rank in range(RANKS)]
    calls = [lambda c=c: c.exchange("key", want[c.rank], LONG) for c in made]
    assert all(got == want for got in together(*calls))


def test_a_router_asks_256_ranks_once() -> None:
    router = ControlRouter(RANKS)
    asked = [
        out for rank in range(RANKS) for out in router.receive(rank, Frame(FrameType.ASK, rank), 0)
    ]
    assert len(asked) == RANKS
    answers = []
    for rank in range(RANKS):
        answers += router.receive(rank, Frame(FrameType.STATUS, rank, "", b"b"), 0)
    assert [rank for rank, _ in answers] == list(range(RANKS))
    assert len({id(frame) for _, frame in answers}) == 1


def test_a_router_tells_once_that_256_ranks_leave() -> None:
    router = ControlRouter(RANKS + 1)
    for rank in range(1, RANKS + 1):
        assert router.receive(rank, Frame(FrameType.CLOSED, rank, "closed", CALLS.pack(0)), 0) == []
    ((rank, frame),) = router.flush()
    assert (rank, frame.kind) == (0, FrameType.LEFT)
    assert not router.needed()


def test_a_router_completes_an_exchange_of_256_ranks_with_one_frame() -> None:
    router = ControlRouter(RANKS)
    out = []
    for rank in range(RANKS):
        out += router.receive(rank, Frame(FrameType.CONTRIBUTE, rank, "k", SECONDS.pack(1.0)), 0)
    assert len(out) == RANKS
    assert len({id(frame) for _, frame in out}) == 1
