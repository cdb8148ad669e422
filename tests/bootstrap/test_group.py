"""Groups of ranks over one control plane: each sees its own members, and only those."""

from __future__ import annotations

import os
import queue
import signal
import struct
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.bootstrap import Bootstrap, detect, spawn
from pycoll.bootstrap.control_router import SECONDS, ControlRouter
from pycoll.bootstrap.framing import CALLS, Frame, FrameType, unpack_blobs
from pycoll.bootstrap.group import number_of
from pycoll.errors import (
    BootstrapError,
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    PeerLostError,
    UsageError,
)

LONG = 30.0  #: seconds; generous: reached only by a hang


class Log:
    """Collects what a control thread says of one communicator."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self.said: queue.Queue[tuple[object, ...]] = queue.Queue()
        bootstrap.control.attach(
            lambda rank, reason: self.said.put((rank, reason)),
            lambda rank, kind, text: self.said.put((rank, kind, text)),
            lambda: b"status of %d" % bootstrap.rank,
        )

    def take(self) -> tuple[object, ...]:
        return self.said.get(timeout=LONG)


@pytest.fixture
def jobs(no_leak: None, stars: Callable[..., list]):
    made: list[Bootstrap] = []

    def make(size: int) -> list[Bootstrap]:
        made.extend(Bootstrap("environment", star, LONG) for star in stars(size))
        return made[-size:]

    yield make
    for job in made:
        job.control._plane.close()
    for job in made:
        job.control._plane.join()


def test_a_group_counts_its_own_ranks(jobs, together):
    job = jobs(5)
    order = [4, 1, 3]
    groups = [job[rank].group(order, "odd") for rank in order]
    assert [(g.rank, g.size) for g in groups] == [(0, 3), (1, 3), (2, 3)]
    assert groups[0].members == tuple(job[0].members[rank] for rank in order)
    assert groups[0].secret == groups[1].secret != job[0].secret
    want = [[b"4", b"1", b"3"]] * 3
    calls = [lambda g=g, r=r: g.allgather(b"%d" % r) for g, r in zip(groups, order, strict=True)]
    assert together(*calls) == want
    assert groups[1].describe(2).startswith("rank 2 (rank 3 of the job, process ")
    assert groups[1].describe(1).startswith("rank 1 (process ")


def test_groups_of_groups_and_of_the_same_ranks(jobs, together):
    job = jobs(4)
    one = [b.group([0, 1, 2], "a") for b in job[:3]]
    two = [b.group([0, 1, 2], "b") for b in job[:3]]
    inner = [one[rank].group([2, 0], "c") for rank in (2, 0)]
    assert len({one[0].control.number, two[0].control.number, inner[0].control.number}) == 3
    calls = [lambda b=b: b.allgather(b"x%d" % b.rank) for b in [*one, *two, *inner]]
    three, both = [b"x0", b"x1", b"x2"], [b"x0", b"x1"]
    assert together(*calls) == [three] * 6 + [both] * 2


def test_a_group_of_one(jobs):
    (alone,) = [jobs(2)[1].group([1], "alone")]
    assert alone.allgather(b"x") == [b"x"]
    alone.close()


def test_the_missing_are_counted_as_in_the_group(jobs, monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control.GRACE_SECONDS", LONG)  # rank 0 may be late
    job = jobs(4)
    group = [job[rank].group([3, 2, 1], "g") for rank in (3, 2)]
    begun = group[0].control.begin("k", b"", LONG)
    with pytest.raises(CollectiveTimeout, match=r"rank 2 did not come within 2 s$"):
        group[1].control.exchange("k", b"", 2)
    with pytest.raises(CollectiveTimeout, match=r"rank 2 did not come within 2 s$"):
        group[0].control.finish(begun, "k", LONG)


def test_an_abort_stays_in_its_group(jobs, together):
    job = jobs(4)
    groups = [b.group([3, 2, 1], "g") for b in job[1:]]
    logs = [Log(b) for b in [*job, *groups]]
    groups[0].control.abort("error", "no")  # rank 1 of the job is rank 2 of the group
    assert logs[5].take() == logs[6].take() == (2, "error", "no")
    with pytest.raises(BrokenError, match=r"^rank 2 gave up \(error\): no$"):
        groups[1].barrier()
    assert together(*[lambda b=b: b.allgather(b"") for b in job]) == [[b""] * 4] * 4
    assert all(log.said.empty() for log in logs)


def test_a_farewell_is_for_its_group_only(jobs, together):
    job = jobs(3)
    groups = [b.group([2, 1, 0], "g") for b in job]
    logs = [Log(b) for b in groups]
    groups[0].close(calls=5)
    groups[0].close(calls=5)
    assert logs[1].take() == logs[2].take() == (2, "closed")
    assert groups[1].control.calls_of(2) == 5
    with pytest.raises(ClosedError, match=r"^exchange: rank 2 has closed its control plane$"):
        groups[0].barrier()
    with pytest.raises(PeerLostError, match=r"^rank 2 \(rank 0 of the job, .* is gone: it closed$"):
        groups[1].barrier()
    assert together(*[lambda b=b: b.allgather(b"") for b in job]) == [[b""] * 3] * 3


def test_the_last_communicator_ends_the_control_plane(jobs):
    job = jobs(2)
    groups = [b.group([0, 1], "g") for b in job]
    for b in job:
        b.close()
    log = Log(groups[0])
    groups[1].close()
    assert log.take() == (1, "closed")
    assert job[1].control._plane._loop is not None
    assert not job[1].control._plane._loop._thread.is_alive()


def test_who_serves_and_has_left_everything_is_waited_for_by_no_group(jobs):
    worlds = jobs(3)
    group = worlds[1].group([0, 1], "g")
    waiting = group.begin(b"")
    worlds[0].close()  # its router goes on: the others need it
    with pytest.raises(PeerLostError, match=r"rank 0 \(process \d+ on .*\) is gone: it closed"):
        waiting.finish()
    late = worlds[2].group([0, 2], "late")
    with pytest.raises(PeerLostError, match="it closed"):
        late.barrier()


def test_rank_0_serves_groups_that_it_has_never_been_in(jobs, together):
    job = jobs(3)
    groups = [b.group([1, 2], "g") for b in job[1:]]
    assert together(*[lambda g=g: g.allgather(b"") for g in groups]) == [[b"", b""]] * 2
    for b in job:
        b.close()
    assert (
        together(*[lambda g=g: g.allgather(b"%d" % g.rank) for g in groups]) == [[b"0", b"1"]] * 2
    )
    log = Log(groups[0])
    groups[1].close()
    assert log.take() == (1, "closed")
    groups[0].close()
    job[0].control._plane.join()
    assert not job[0].control._plane._loop._thread.is_alive()


def test_who_joins_late_hears_what_was_said_before(jobs):
    job = jobs(3)
    first = job[0].group([0, 1, 2], "g")
    second = job[1].group([0, 1, 2], "g")
    log = Log(second)
    first.control.abort("error", "early")
    first.close(calls=3)
    assert [log.take(), log.take()] == [(0, "error", "early"), (0, "closed")]
    late = job[2].group([0, 1, 2], "g")
    log = Log(late)
    assert [log.take(), log.take()] == [(0, "error", "early"), (0, "closed")]
    assert late.control.calls_of(0) == 3


def test_everyone_is_asked_once_however_many_ask(jobs, together, monkeypatch):
    monkeypatch.setattr("pycoll.bootstrap.control_router.POLL_SECONDS", LONG)
    job = jobs(4)
    groups = [b.group([2, 1, 3], "g") for b in job[1:]]
    _ = [Log(b) for b in [*job, *groups]]

    def ask(b: Bootstrap) -> dict[int, bytes]:
        assert b.control.ask().wait(LONG)
        return b.control.statuses()

    together(*[b.barrier for b in groups])  # who has not joined yet would not be asked
    want = {rank: b"status of %d" % rank for rank in range(3)}
    assert together(*[lambda b=b: ask(b) for b in groups]) == [want] * 3
    assert len(ask(job[0])) == 4


def test_a_rank_that_is_silent_or_leaves_is_not_waited_for(jobs):
    job = jobs(4)
    _ = [Log(b) for b in job[:2]]  # rank 2 never attaches, and so never answers
    job[3].close()
    while len(job[0].control.statuses()) < 2:  # on a busy machine one may be late for a round
        assert job[0].control.ask().wait(LONG)
    assert job[0].control.statuses() == {0: b"status of 0", 1: b"status of 1"}


def test_a_callback_has_ended_when_close_returns(jobs):
    job = jobs(2)
    groups = [b.group([0, 1], "g") for b in job]
    entered, go, order = threading.Event(), threading.Event(), []

    def slow(*_: object) -> None:
        entered.set()
        assert go.wait(LONG)
        order.append("callback")

    groups[0].control.attach(slow, slow)
    groups[1].control.abort("error", "x")
    assert entered.wait(LONG)
    closer = threading.Thread(target=lambda: (groups[0].close(), order.append("closed")))
    closer.start()
    go.set()
    closer.join(LONG)
    assert order == ["callback", "closed"]


@pytest.mark.parametrize("ranks", [[0, 0, 1], [1, 2], [0, 7], [0, -1]])
def test_ranks_that_make_no_group(jobs, ranks):
    with pytest.raises(
        UsageError,
        match=r"^group 'g': ranks are \[.*\], want ranks below 3, each once, and 0 among",
    ):
        jobs(3)[0].group(ranks, "g")


def test_a_key_that_was_given_before(jobs):
    job = jobs(2)[0]
    job.group([0, 1], "g")
    with pytest.raises(UsageError, match=r"^group: its ranks have one under this key already; giv"):
        job.group([0, 1], "g")


def die_in_groups() -> object:
    world = detect()
    first = world.group([0, 1, 2], "a") if world.rank < 3 else None
    second = world.group([3, 2], "b") if world.rank > 1 else None
    log = Log(first or second or world)
    world.barrier()
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    said = log.take()
    for b in (first, second, world):
        if b:
            b.close()
    return said


def test_a_death_reaches_every_group_of_the_dead():
    outcomes = spawn(die_in_groups, 4, timeout=LONG, check=False)
    assert [outcomes[r] for r in (0, 1, 3)] == [(2, "died"), (2, "died"), (1, "died")]


def rank_0_leaves_first() -> object:
    world = detect()
    group = world.group([1, 2], "g") if world.rank else None
    if group is None:
        world.barrier()
        return "left"  # its process waits, without a word, for those that need its router
    group.barrier()
    world.barrier()
    log = Log(world)
    said = log.take()
    assert group.allgather(b"still") == [b"still"] * 2
    group.close()
    world.close()
    return said


def test_a_group_without_rank_0_outlives_rank_0():
    assert spawn(rank_0_leaves_first, 3, timeout=LONG) == ["left", *[(0, "exited")] * 2]


# The router alone


def join(rank: int, ranks: list[int], number: int = 9) -> Frame:
    return Frame(FrameType.JOIN, rank, "", struct.pack(f"<{len(ranks)}I", *ranks), number)


def test_a_group_is_forgotten_when_all_have_left_it():
    router = ControlRouter(4)
    for rank in (1, 2, 3):
        assert router.receive(rank, join(rank, [1, 2, 3]), 0) == []
    assert router.needed()
    closed = Frame(FrameType.CLOSED, 1, "closed", CALLS.pack(7), 9)
    assert router.receive(1, closed, 0) == []
    assert router.flush() == [(2, closed), (3, closed)]
    lost = Frame(FrameType.LOST, 2, "died")
    assert router.lost(2, "died") == [(0, lost), (1, lost), (3, lost)]
    router.receive(3, closed._replace(rank=3), 0)
    assert list(router._groups) == [0]
    assert router.needed()
    for rank in (1, 3):
        router.receive(rank, closed._replace(rank=rank, group=0), 0)
    assert not router.needed()  # by any but rank 0, where it is


def test_nothing_is_said_of_who_left_every_group():
    router = ControlRouter(3)
    router.receive(1, join(1, [1, 2]), 0)
    router.receive(2, join(2, [1, 2]), 0)
    for number in (0, 9):
        router.receive(1, Frame(FrameType.CLOSED, 1, "closed", CALLS.pack(7), number), 0)
    assert router.lost(1, "died") == []


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (join(1, [2, 0]), r"^rank 1 joined a group of ranks 2, 0$"),
        (join(1, [1, 1]), r"^rank 1 joined a group of ranks 1, 1$"),
        (join(1, [1, 3]), r"^rank 1 joined a group of ranks 1, 3$"),
        (join(1, []), r"^rank 1 sent JOIN with 0 bytes$"),
        (Frame(FrameType.JOIN, 1, "", b"12345", 9), r"^rank 1 sent JOIN with 5 bytes$"),
        (join(1, [0, 1], 5), r"^rank 1 joined group 5 with other ranks$"),
        (
            Frame(FrameType.ABORT, 1, "k", b"", 5),
            r"^rank 1 sent ABORT to a group that it is not in$",
        ),
        (Frame(FrameType.ASK, 1, group=7), r"^rank 1 sent ASK to a group that it is not in$"),
    ],
)
def test_a_group_frame_that_no_rank_sends(frame, message):
    router = ControlRouter(3)
    router.receive(0, join(0, [2, 0, 1], 5), 0)
    with pytest.raises(BootstrapError, match=message):
        router.receive(1, frame, 0)


def test_a_poll_ends_with_its_deadline():
    router = ControlRouter(3)
    ask = Frame(FrameType.ASK, 0)
    assert router.receive(1, Frame(FrameType.ASK, 1), 10) == [(0, ask), (1, ask), (2, ask)]
    assert router.receive(2, Frame(FrameType.ASK, 2), 10.1) == []
    assert router.receive(2, Frame(FrameType.STATUS, 2, "", b"two"), 10.2) == []
    assert router.next_deadline() == 10.5
    out = router.expire(10.5)
    assert [rank for rank, _ in out] == [1, 2]
    assert unpack_blobs(out[0][1].body, 3) == [b"", b"", b"two"]


def test_a_rank_that_joins_during_a_poll_is_asked_too():
    router = ControlRouter(3)
    router.receive(0, join(0, [0, 1], 5), 0)
    router.receive(0, Frame(FrameType.ASK, 0, group=5), 0)
    assert router.receive(1, join(1, [0, 1], 5), 0) == [(1, Frame(FrameType.ASK, 0, group=5))]
    assert router.receive(0, Frame(FrameType.STATUS, 0, "", b"zero", 5), 0) == []
    ((asker, answer),) = router.receive(1, Frame(FrameType.STATUS, 1, "", b"one", 5), 0)
    assert asker == 0
    assert unpack_blobs(answer.body, 2) == [b"zero", b"one"]


def test_the_number_of_a_group_follows_from_what_all_members_know():
    numbers = {number_of(p, k, r) for p in (0, 1) for k in ("a", "b") for r in ([0, 1], [1, 0])}
    assert len(numbers) == 8
    assert all(0 < number < 2**64 for number in numbers)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(FrameType),
            st.integers(0, 3),
            st.sampled_from(["", "k"]),
            st.sampled_from(
                [
                    b"",
                    SECONDS.pack(1.0),
                    CALLS.pack(1),
                    *(join(0, r).body for r in ([0], [0, 1, 2])),
                ]
            ),
            st.sampled_from([0, 5, 9]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_any_frames_of_groups_are_served_or_refused(received):
    router = ControlRouter(3)
    for now, (rank, kind, claimed, key, body, number, ends) in enumerate(received):
        try:
            out = router.receive(rank, Frame(kind, claimed, key, body, number), now)
        except BootstrapError:
            out = router.lost(rank, "garbled") if ends else []
        out += router.expire(now)
        assert {to for to, _ in out} <= {0, 1, 2}
        assert router.next_deadline() > now
