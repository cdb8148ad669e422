from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import ScheduleError, UsageError
from pycoll.program.isa import MAX_CHANNELS
from pycoll.schedule import (
    Kind,
    Level,
    Placement,
    ScheduleBuilder,
    allgather,
    allreduce,
    alltoall,
    asks_placement,
    schedule,
    trace,
)
from pycoll.schedule.builder import CHANNELS
from pycoll.schedule.trace import KNOWN


def test_trace_writes_one_rank_only() -> None:
    calls = []

    @algorithm(allreduce)
    def spy(b: ScheduleBuilder) -> None:
        calls.append(b.rank)
        b.send(b.output[0], to=0)

    (step,) = trace(spy, 4, 2)
    assert step.kind is Kind.SEND
    assert calls == [2]


def test_schedule_holds_what_trace_gives() -> None:
    ring = get("ring")
    s = schedule(ring, 5)
    assert (s.name, s.collective, s.size, s.nchunks, s.nscratch) == ("ring", allreduce, 5, 5, 0)
    assert s.ranks == tuple(trace(ring, 5, rank) for rank in range(5))
    assert schedule(ring, 5) is s


def test_widest_and_channels() -> None:
    assert schedule(get("halving_doubling"), 8).widest == 4
    assert schedule(get("halving_doubling"), 9).widest == 8
    assert schedule(get("ring"), 1).widest == 1
    assert schedule(get("double_binary_tree"), 4).nchannels == CHANNELS == MAX_CHANNELS


def test_digests_tell_schedules_apart_and_are_stable() -> None:
    digests = {schedule(get(n), size).digest for n in ("ring", "two_shot") for size in (2, 3, 4)}
    assert len(digests) == 6
    # A digest crosses processes and machines: it must never depend on the interpreter's seed.
    assert schedule(get("one_shot"), 2).digest == 16988601976934591626


def unmatched(b: ScheduleBuilder) -> None:
    if b.rank == 0:
        b.send(b.output[0], to=1)


def other_chunk(b: ScheduleBuilder) -> None:
    if b.rank == 0:
        b.send(b.output[0], to=1)
    else:
        b.recv(b.output[1], frm=0)


def other_width(b: ScheduleBuilder) -> None:
    if b.rank == 0:
        b.send(b.output[0:2], to=1)
    else:
        b.recv(b.output[0], frm=0)


def other_cut(b: ScheduleBuilder) -> None:
    b.chunks(b.rank + 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unmatched, r"channel 0: rank 0 sends 1 messages to rank 1, which receives 0"),
        (other_chunk, r"rank 0 sends out\[0\] as message 0 to rank 1, .*into out\[1\]"),
        (other_width, r"rank 0 sends out\[0:2\] as message 0 to rank 1, .*into out\[0\]"),
        (other_cut, r"rank 1 cuts 2 chunks and rank 0 1"),
    ],
)
def test_sides_that_do_not_fit_are_refused(
    function: Callable[[ScheduleBuilder], None], message: str
) -> None:
    with pytest.raises(ScheduleError, match=f"^{function.__name__}: .*{message}"):
        schedule(algorithm(allreduce)(function), 2)


def test_size_is_positive() -> None:
    with pytest.raises(UsageError, match=r"^ring: size is 0, want at least 1$"):
        schedule(get("ring"), 0)


PAIRS = Placement.of(Level("node", (0, 0, 1, 1)))


def test_a_schedule_that_asks_for_no_placement_serves_all() -> None:
    ring = get("ring")
    assert schedule(ring, 4, PAIRS) is schedule(ring, 4)
    assert not asks_placement(ring, 4, PAIRS)


def test_a_schedule_that_asks_is_made_for_each_placement() -> None:
    @algorithm(allgather)
    def near_first(b: ScheduleBuilder) -> None:
        for peer in sorted(range(b.size), key=lambda p: (not near(b, p), p)):
            if peer != b.rank:
                b.send(b.input[b.rank], to=peer)
                b.recv(b.output[peer], frm=peer)

    def near(b: ScheduleBuilder, peer: int) -> bool:
        return not b.placement.flat and b.placement.levels[0].groups[peer] == b.rank // 2

    placed, flat = schedule(near_first, 4, PAIRS), schedule(near_first, 4)
    assert asks_placement(near_first, 4, PAIRS)
    assert asks_placement(near_first, 4)
    assert placed.digest != flat.digest
    assert [s.peers[0] for s in placed.ranks[2] if s.kind is Kind.SEND] == [3, 0, 1]
    assert schedule(near_first, 4, Placement()) is flat
    assert schedule(near_first, 4, PAIRS) is placed
    assert trace(near_first, 4, 2, PAIRS) == placed.ranks[2]


def test_the_oldest_of_many_schedules_is_made_again() -> None:
    calls = []

    @algorithm(allreduce)
    def counted(b: ScheduleBuilder) -> None:
        calls.append(b.size)

    for size in (1, *range(2, KNOWN + 2), 1):
        schedule(counted, size)
    assert calls.count(1) == 2


def test_a_placement_is_of_as_many_ranks() -> None:
    message = r"^ring: size is 3, but level 'node' of the placement has 4 ranks$"
    for _ in range(2):  # the second time the schedule is known
        with pytest.raises(UsageError, match=message):
            schedule(get("ring"), 3, PAIRS)
        schedule(get("ring"), 3)


def test_in_alltoall_a_message_may_land_in_another_place() -> None:
    @algorithm(alltoall)
    def exchange(b: ScheduleBuilder) -> None:
        b.copy(b.input[b.rank], b.output[b.rank])
        b.send(b.input[1 - b.rank], to=1 - b.rank)
        b.recv(b.output[1 - b.rank], frm=1 - b.rank)

    assert schedule(exchange, 2).nchunks == 2
