from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycoll.errors import ScheduleError, UsageError
from pycoll.schedule import (
    COLLECTIVES,
    Buffer,
    Chunks,
    Kind,
    Level,
    Placement,
    ScheduleBuilder,
    Step,
    allgather,
    alltoall,
    gather,
    scatter,
)

OUT0 = Chunks(Buffer.OUTPUT, 0, 0, 1)


def test_calls_become_steps_in_order() -> None:
    b = ScheduleBuilder(3, 1)
    b.send(b.output[0], to=2)
    with b.channel(2):
        b.recv(b.output[0], frm=0)
        b.recv_reduce(b.output[0], frm=0)
    b.recv_reduce(b.output[0], frm=range(3))
    assert b.steps == [
        Step(Kind.SEND, 0, OUT0, (2,)),
        Step(Kind.RECV, 2, OUT0, (0,)),
        Step(Kind.RECV_REDUCE, 2, OUT0, (1, 0)),
        Step(Kind.RECV_REDUCE, 0, OUT0, (0, 1, 2)),
    ]


def test_a_fold_of_the_rank_alone_is_no_step() -> None:
    b = ScheduleBuilder(1, 0)
    b.recv_reduce(b.output[0], frm=[0])
    assert b.steps == []


def test_channels_nest() -> None:
    b = ScheduleBuilder(2, 0)
    with b.channel(1):
        with b.channel(3):
            b.send(b.output[0], to=1)
        b.send(b.output[0], to=1)
    b.send(b.output[0], to=1)
    assert [step.channel for step in b.steps] == [3, 1, 0]


def test_chunks_default_to_size() -> None:
    b = ScheduleBuilder(5, 0)
    assert b.nchunks == 5
    b.chunks(2)
    assert b.nchunks == len(b.input) == 2


def test_local_steps_and_scratch() -> None:
    b = ScheduleBuilder(2, 0)
    b.copy(b.input[1], b.scratch[3])
    b.reduce(b.scratch[3], into=b.output[1])
    assert [step.kind for step in b.steps] == [Kind.COPY, Kind.REDUCE]
    assert b.nscratch == 4


def late_chunks(b: ScheduleBuilder) -> None:
    b.send(b.output[0], to=1)
    b.chunks(2)


def scratch_in_two_channels(b: ScheduleBuilder) -> None:
    b.recv(b.scratch[0], frm=1)
    with b.channel(1):
        b.send(b.scratch[0], to=1)


def input_after_output(b: ScheduleBuilder) -> None:
    b.recv(b.output[0], frm=1)
    b.send(b.input[0], to=1)


def open_channel(b: ScheduleBuilder) -> None:
    with b.channel(4):
        pass


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (late_chunks, r"chunks\(2\) must be the first call, once"),
        (lambda b: (b.chunks(1), b.chunks(1)), r"chunks\(1\) must be the first call, once"),
        (lambda b: b.chunks(0), r"chunks\(0\), want an int of at least 1"),
        (lambda b: b.send(b.output[0], to=0), r"send with rank 0, want another of 0\.\.2"),
        (lambda b: b.recv(b.output[0], frm=3), r"recv with rank 3, want another of 0\.\.2"),
        (lambda b: b.recv_reduce(b.output[0], frm=[0, 5]), r"recv_reduce with rank 5"),
        (lambda b: b.recv_reduce(b.output[0], frm=[1, 2]), r"from \(1, 2\), want every rank"),
        (lambda b: b.recv_reduce(b.output[0], frm=[0, 1, 1]), r"from \(0, 1, 1\), want every"),
        (lambda b: b.recv(b.input[0], frm=1), r"writes in\[0\]; the input is read only"),
        (input_after_output, r"reads in\[0\] after out was written there; in place"),
        (lambda b: b.send(b.scratch[2], to=1), r"reads scratch\[2\], which nothing has written"),
        (scratch_in_two_channels, r"scratch\[0\] is used from channels 0 and 1"),
        (open_channel, r"channel 4, want 0\.\.3"),
        (lambda b: b.copy(b.input[0:2], b.output[0]), r"copy in\[0:2\] to out\[0\]: the counts"),
        (lambda b: b.reduce(b.input[0], b.output[1]), r"reduce in\[0\] to out\[1\]: place i"),
    ],
)
def test_a_wrong_call_is_refused(write: Callable[[ScheduleBuilder], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^rank 0: .*{message}"):
        write(ScheduleBuilder(3, 0))


@pytest.mark.parametrize("rank", [3, -1, "0", 1.0, None])
def test_a_builder_of_no_rank_is_refused(rank: object) -> None:
    with pytest.raises(UsageError, match=r"^ScheduleBuilder: rank is .*, want 0 to 2$"):
        ScheduleBuilder(3, rank)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -2, (1 << 20) + 1, "3", 3.0, None])
def test_a_builder_for_no_number_of_ranks_is_refused(size: object) -> None:
    with pytest.raises(UsageError, match=r"^ScheduleBuilder: size is .*, want an integer from 1"):
        ScheduleBuilder(size, 0)  # type: ignore[arg-type]


def test_whoever_reads_the_placement_has_asked_for_it() -> None:
    pairs = Placement.of(Level("node", (0, 0, 1, 1)))
    b = ScheduleBuilder(4, 0, allgather, pairs)
    assert not b.asked_placement
    assert b.placement is pairs
    assert b.asked_placement
    assert ScheduleBuilder(4, 0).placement.flat


def test_blocks_are_cut_into_equal_parts() -> None:
    b = ScheduleBuilder(3, 0, allgather)
    assert b.nchunks == 3
    b.chunks(6)
    assert b.nchunks == 6


def test_output_that_is_not_this_ranks_may_be_written_and_read_again() -> None:
    b = ScheduleBuilder(4, 2, gather)
    b.recv(b.output[3], frm=3)
    b.send(b.output[2:4], to=0)  # chunk 2 is still the input
    b = ScheduleBuilder(4, 2, scatter)
    b.recv(b.output[2:4], frm=0)
    b.send(b.output[3], to=3)


def test_in_alltoall_places_are_free_and_the_input_stays() -> None:
    b = ScheduleBuilder(3, 0, alltoall)
    b.copy(b.input[1], b.output[0])
    b.send(b.input[0], to=1)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("allgather", lambda b: b.chunks(4), r"chunks\(4\): 4 chunks, want a multiple of 3"),
        ("alltoall", lambda b: b.chunks(6), r"chunks\(6\): 6 chunks, want 3: alltoall cuts no"),
        (
            "allgather",
            lambda b: b.send(b.input[0], to=0),
            r"reads in\[0\]; the input that allgather gives this rank is in\[1:2\]$",
        ),
        (
            "broadcast",
            lambda b: b.send(b.input[:], to=0),
            r"reads in\[0:3\]; the input that broadcast gives this rank is empty$",
        ),
        (
            "gather",
            lambda b: b.send(b.output[1:3], to=0),
            r"reads out\[2\], which nothing has written and the input does not hold$",
        ),
        (
            "alltoall",
            lambda b: b.send(b.output[1], to=0),
            r"reads out\[1\], which nothing has written$",
        ),
        (
            "broadcast",
            lambda b: b.recv_reduce(b.output[0], frm=0),
            "recv_reduce: broadcast has no operation to fold with",
        ),
        (
            "gather",
            lambda b: b.reduce(b.input[1], into=b.output[1]),
            "reduce: gather has no operation to fold with",
        ),
    ],
)
def test_what_the_collective_does_not_allow_is_refused(
    name: str, write: Callable[[ScheduleBuilder], object], message: str
) -> None:
    with pytest.raises(ScheduleError, match=f"^rank 1: {message}"):
        write(ScheduleBuilder(3, 1, COLLECTIVES[name]))


def test_peers_may_be_integers_of_numpy() -> None:
    b = ScheduleBuilder(3, 1)
    b.send(b.output[0], to=np.int64(2))
    b.recv(b.output[0], frm=np.int64(2))
    b.recv_reduce(b.output[0], frm=np.int64(2))
    b.recv_reduce(b.output[0], frm=np.arange(3))
    peers = [p for step in b.steps for p in step.peers]
    assert peers == [2, 2, 1, 2, 0, 1, 2]
    assert {type(p) for p in peers} == {int}


@pytest.mark.parametrize("peer", [2.0, "2", None])
def test_a_peer_that_is_no_integer(peer: Any) -> None:
    b = ScheduleBuilder(3, 1)
    for call in (b.send, b.recv, b.recv_reduce):
        with pytest.raises(
            ScheduleError, match=r"^rank 1: \w+ with rank .*, want another of 0..2$"
        ):
            call(b.output[0], [peer, 1] if call == b.recv_reduce else peer)


def test_a_whole_buffer_is_no_range_of_chunks() -> None:
    b = ScheduleBuilder(3, 1)
    want = r"^out is a whole buffer, want chunks of it: out\[i\], out\[:\]$"
    calls: list[Callable[[], None]] = [
        lambda: b.send(b.output, to=2),  # type: ignore[arg-type]
        lambda: b.recv(b.output, frm=2),  # type: ignore[arg-type]
        lambda: b.recv_reduce(b.output, frm=2),  # type: ignore[arg-type]
        lambda: b.copy(b.output, b.scratch[0]),  # type: ignore[arg-type]
        lambda: b.within([0, 1]).send(b.output, to=0),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(ScheduleError, match=want):
            call()
    assert b.steps == []
