from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import DeadlockError, ScheduleError
from pycoll.schedule import Buffer, ScheduleBuilder, allreduce, alltoall, parse, schedule
from pycoll.schedule.evaluate import evaluate


def test_the_ring_completes_each_chunk_once() -> None:
    s = schedule(get("ring"), 4)
    found = evaluate(s)
    # The last of three folds; sends and folds alternate.
    assert found.completes == (frozenset({5}),) * 4
    assert found.depth == 6
    assert found.resolved is s


def test_scratch_takes_the_chunk_that_is_sent() -> None:
    @algorithm(allreduce)
    def relay(b: ScheduleBuilder) -> None:
        peer = 1 - b.rank
        b.send(b.input[1], to=peer)
        b.recv(b.scratch[4], frm=peer)
        b.send(b.scratch[4], to=peer)
        b.recv(b.scratch[0], frm=peer)
        b.reduce(b.scratch[0], into=b.output[1])

    s = schedule(relay, 2)
    held = [c.chunk for step in s.ranks[0] for c in (step.chunks, step.source) if c]
    assert held == [1, 1, 1, 1, 1, 1]
    assert s.nscratch == 5
    assert s.ranks[0][1].chunks.buffer is Buffer.SCRATCH


def circle(b: ScheduleBuilder) -> None:
    b.recv(b.scratch[0], frm=1 - b.rank)
    b.send(b.scratch[0], to=1 - b.rank)


def mixes(b: ScheduleBuilder) -> None:
    b.send(b.input[0], to=1 - b.rank)
    b.recv(b.scratch[0], frm=1 - b.rank)
    b.reduce(b.scratch[0], into=b.output[1])


def gap(b: ScheduleBuilder) -> None:
    b.copy(b.input[0], b.scratch[0])
    b.copy(b.input[0], b.scratch[1])
    b.send(b.scratch[0:2], to=1 - b.rank)
    b.recv(b.scratch[2:4], frm=1 - b.rank)


def half_done(b: ScheduleBuilder) -> None:
    b.send(b.input[0], to=1 - b.rank)
    b.recv_reduce(b.output[0], frm=1 - b.rank)
    b.send(b.output[:], to=1 - b.rank)
    b.recv_reduce(b.output[:], frm=1 - b.rank)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (circle, DeadlockError, r"no rank can go on; rank 0 at step 0: recv .*; rank 1 at step 0"),
        (mixes, ScheduleError, r"rank 1 step 2: reduce .*: mixes chunks \[0, 1\]"),
        (gap, ScheduleError, r"scratch\[0:2\].* holds chunks \[0, 0\]; a range must hold adjacent"),
    ],
)
def test_what_cannot_run_is_refused(
    function: Callable[[ScheduleBuilder], None], error: type[ScheduleError], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate(schedule(algorithm(allreduce)(function), 2))


def test_channels_run_apart_but_keep_the_order_of_conflicts() -> None:
    @algorithm(allreduce)
    def crossed(b: ScheduleBuilder) -> None:
        # In one channel both ranks would wait first: rank c folds chunk c in channel c.
        for c in (b.rank, 1 - b.rank):
            with b.channel(c):
                if b.rank == c:
                    b.recv_reduce(b.output[c], frm=1 - c)
                else:
                    b.send(b.output[c], to=c)
        with b.channel(2):
            b.send(b.output[b.rank], to=1 - b.rank)
            b.recv(b.output[1 - b.rank], frm=1 - b.rank)

    found = evaluate(schedule(crossed, 2))
    assert found.depth == 2  # the send of channel 2 has waited for the fold
    assert found.completes == (frozenset({0}), frozenset({0}))


def test_a_fold_that_completes_only_some_chunks_is_noted() -> None:
    found = evaluate(schedule(algorithm(allreduce)(half_done), 2))
    assert found.mixed.startswith("half_done: rank ")
    assert found.mixed.endswith("an average needs one fold for each")


def test_where_blocks_are_equal_any_chunk_may_lie_beside_any() -> None:
    @algorithm(alltoall)
    def back_to_front(b: ScheduleBuilder) -> None:
        for k in range(b.size):
            b.copy(b.input[-1 - k], b.scratch[k])
        b.send(b.scratch[0:2], to=(b.rank + 1) % b.size)
        b.recv(b.output[0:2], frm=(b.rank - 1) % b.size)
        b.send(b.output[0], to=(b.rank + 1) % b.size)
        b.recv(b.scratch[7], frm=(b.rank - 1) % b.size)

    found = evaluate(schedule(back_to_front, 3))
    assert found.depth == 2
    assert {step.chunks.chunk for step in found.resolved.ranks[0] if step.peers} == {0}


def test_no_message_is_wider_than_all_chunks() -> None:
    @algorithm(alltoall)
    def wide(b: ScheduleBuilder) -> None:
        for k in range(4):
            b.copy(b.input[k], b.scratch[k])
        b.send(b.scratch[0:4], to=1 - b.rank)
        b.recv(b.scratch[4:8], frm=1 - b.rank)

    with pytest.raises(ScheduleError, match=r"^scratch\[0:4\]@-1: 4 chunks, want at most 2$"):
        schedule(wide, 2)


def test_a_text_may_read_what_is_not_there() -> None:
    text = """schedule s broadcast size 2 chunks 1 scratch 0
rank 0
  recv out[0] from 1
rank 1
  send in[0] to 0
"""
    with pytest.raises(ScheduleError, match=r"^s: rank 1 reads in\[0\], which nothing has written"):
        evaluate(parse(text))
