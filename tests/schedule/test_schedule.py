from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import ScheduleError, UsageError
from pycoll.program.isa import MAX_CHANNELS
from pycoll.schedule import Kind, ScheduleBuilder, allreduce, schedule, trace
from pycoll.schedule.builder import CHANNELS


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
