"""Some of the ranks as a builder of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import ScheduleError
from pycoll.schedule import (
    Level,
    Placement,
    ScheduleBuilder,
    allgather,
    allreduce,
    alltoall,
    reduce_scatter,
    schedule,
)
from pycoll.verify import verify


def builder(rank: int = 3, nchunks: int = 12) -> ScheduleBuilder:
    b = ScheduleBuilder(6, rank)
    b.chunks(nchunks)
    return b


def written(b: ScheduleBuilder) -> list[str]:
    return [("" if not s.channel else f"[{s.channel}] ") + str(s) for s in b.steps]


def test_ranks_are_numbered_anew() -> None:
    b = builder()
    g = b.within([5, 3, 1])
    assert (g.size, g.rank, g.nchunks) == (3, 1, 3)
    g.send(g.output[0], to=0)
    g.recv(g.output[1], frm=2)
    g.recv_reduce(g.output[2], frm=0)
    g.recv_reduce(g.output[2], frm=[0, 1, 2])
    assert written(b) == [
        "send out[0:4] to 5",
        "recv out[4:8] from 1",
        "recv_reduce out[8:12] from 3 5",
        "recv_reduce out[8:12] from 5 3 1",
    ]


def test_a_range_is_cut_into_equal_runs() -> None:
    b = builder()
    g = b.within([3, 4], b.output[4:10])
    g.chunks(3)
    g.send(g.output[:], to=1)
    g.send(g.output[1], to=1)
    g.send(g.output[3], to=1)  # wraps round
    assert written(b) == ["send out[4:10] to 4", "send out[6:8] to 4", "send out[4:6] to 4"]


def test_pieces_that_do_not_lie_side_by_side_are_messages_of_their_own() -> None:
    b = builder()
    h = b.within([3, 4, 5], [[0, 1, 5], [], [6]])
    h.send(h.output[0], to=1)
    h.send(h.output[1], to=1)
    h.recv_reduce(h.output[:], frm=1)
    assert written(b) == [
        "send out[0:2] to 4",
        "send out[5] to 4",
        "recv_reduce out[0:2] from 3 4",
        "recv_reduce out[5:7] from 3 4",
    ]


def test_the_input_is_what_the_output_holds_now() -> None:
    b = builder()
    b.recv(b.output[:], frm=0)
    g = b.within([3, 4])
    g.send(g.input[0], to=1)
    g.copy(g.input[0], g.output[0])  # the same place: nothing to do
    assert written(b)[1:] == ["send out[0:6] to 4"]


def test_where_they_are_never_one_memory_the_input_is_the_input() -> None:
    b = ScheduleBuilder(4, 1, alltoall)
    g = b.within([0, 1], [[0], [1]])
    g.copy(g.input[1], g.output[1])
    assert written(b) == ["copy in[1] into out[1]"]


def test_scratch_lies_behind_that_of_the_others() -> None:
    b = builder()
    b.recv(b.scratch[0:2], frm=0)
    g = b.within([3, 4], b.output[0:6])
    g.recv(g.scratch[1], frm=1)
    g.reduce(g.scratch[1], into=g.output[0])
    h = g.within([1, 0], g.output[0])
    h.chunks(1)
    h.recv(h.scratch[0], frm=0)
    assert written(b)[1:] == [
        "recv scratch[5:8]@-1 from 4",
        "reduce scratch[5:8]@-1 into out[0:3]",
        "recv scratch[8:11]@-1 from 4",
    ]


def test_channels_are_the_parents() -> None:
    b = builder()
    g = b.within([3, 4])
    with g.channel(2):
        g.send(g.output[0], to=1)
    with b.channel(1):
        g.send(g.output[0], to=1)
    assert written(b) == ["[2] send out[0:6] to 4", "[1] send out[0:6] to 4"]


def test_groups_of_groups_and_their_placement() -> None:
    placement = Placement.of(Level("node", (0, 0, 0, 1, 1, 2)))
    b = ScheduleBuilder(6, 4, allreduce, placement)
    g = b.within([5, 4, 3])
    assert g.placement.groups("node") == ((0,), (1, 2))
    assert b.asked_placement
    h = g.within([1, 2])
    assert h.placement.flat
    h.chunks(1)
    h.send(h.output[:], to=1)
    assert written(b) == ["send out[0:6] to 3"]


def test_any_algorithm_may_run_in_a_group() -> None:
    @algorithm(allreduce)
    def halves(b: ScheduleBuilder) -> None:
        """Reduce-scatter and all-gather among even and odd ranks, all-reduce between them."""
        b.chunks(4 * 6)
        mine = [r for r in range(b.size) if r % 2 == b.rank % 2]
        part = b.rank // 2 * 8
        get("recursive_halving", "reduce_scatter")(b.within(mine, collective=reduce_scatter))
        get("one_shot")(b.within([b.rank & ~1, b.rank | 1], b.output[part : part + 8]))
        get("bruck", "allgather")(b.within(mine, collective=allgather))

    assert verify(halves, 6)
    assert schedule(halves, 6).nchunks == 24


def test_a_builders_errors_are_the_groups_too() -> None:
    b = builder()
    g = b.within([3, 4, 5])
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: b.within([4, 5]), "rank 3: within (4, 5), want ranks once each, 3 among them"),
        (lambda: b.within([3, 3]), "rank 3: within (3, 3), want ranks once each, 3 among them"),
        (lambda: g.send(g.output[0], to=3), "rank 0: send with rank 3, want another of 0..2"),
        (lambda: g.recv(g.output[0], frm=0), "rank 0: recv with rank 0, want another of 0..2"),
        (
            lambda: b.within([3, 4, 5]).chunks(5),
            "rank 0: chunks(5) of a group that has 12 chunks, want a divisor of that",
        ),
        (
            lambda: b.within([3, 4], [[0], [1], [2, 3]]).chunks(2),
            "rank 0: chunks(2) of a group whose 3 pieces are given",
        ),
        (
            lambda: b.within([3, 4], [[0], [1]]).chunks(4),
            "rank 0: chunks(4) of a group whose 2 pieces are given",
        ),
        (
            lambda: b.within([3, 4], [[0], [1]]).recv(g.scratch[0], frm=1),
            "rank 0: scratch[0]@-1 of a group whose pieces are given; only a group on one range "
            "of chunks has scratch",
        ),
        (
            lambda: g.copy(g.output[0], g.scratch[0:2]),
            "rank 0: copy out[0] to scratch[0:2]@-1: the counts differ",
        ),
    ]
    pieces = ScheduleBuilder(4, 1, alltoall).within([0, 1], [[0, 1], [3, 2]])
    calls.append(
        (
            lambda: pieces.copy(pieces.input[0], pieces.output[1]),
            "rank 1: copy in[0] to out[1]: the pieces of the group lie differently",
        )
    )
    calls.append((lambda: g.chunks(3), "rank 0: chunks(3) must be the first call, once"))
    for call, message in calls:
        with pytest.raises(ScheduleError, match=f"^{re.escape(message)}$"):
            call()
