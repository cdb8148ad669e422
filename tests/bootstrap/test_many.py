"""256 ranks on one machine: they meet, talk, split and part; bench/ says how fast."""

from __future__ import annotations

import resource

from pycoll.bootstrap import detect, job, spawn
from pycoll.bootstrap.control_router import SECONDS, ControlRouter
from pycoll.bootstrap.framing import Frame, FrameType

RANKS = 256
LONG = 120.0  #: seconds; generous: reached only by a hang


def meet() -> tuple[int, int]:
    """Be a rank with few file descriptors; return the sum of what it was told, and its row rank."""
    # Rank 0 has a connection to each; no other rank holds anything for each.
    most = 80 if job.current().rank else RANKS + 80
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    world = detect()
    told = world.allgather(b"%d" % world.rank)
    rows = world.group([r for r in range(RANKS) if r % 16 == world.rank % 16], "row")
    told += rows.allgather(b"%d" % world.rank)
    rows.close()
    world.barrier()
    world.close()
    return sum(map(int, told)), rows.rank


def test_256_processes_meet_and_split() -> None:
    everyone = sum(range(RANKS))
    outcomes = spawn(meet, RANKS, timeout=LONG)
    for rank, (told, row_rank) in enumerate(outcomes):
        assert told == everyone + sum(r for r in range(RANKS) if r % 16 == rank % 16)
        assert row_rank == rank // 16


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


def test_a_router_completes_an_exchange_of_256_ranks_with_one_frame() -> None:
    router = ControlRouter(RANKS)
    out = []
    for rank in range(RANKS):
        out += router.receive(rank, Frame(FrameType.CONTRIBUTE, rank, "k", SECONDS.pack(1.0)), 0)
    assert len(out) == RANKS
    assert len({id(frame) for _, frame in out}) == 1
