from collections.abc import Callable

import pytest

from pycoll.algorithms import algorithm, get
from pycoll.errors import ScheduleError
from pycoll.passes import mapped
from pycoll.program.isa import Op, Space
from pycoll.program.lower import LIMITS, compile_all
from pycoll.schedule import (
    NotDirect,
    RankSteps,
    ScheduleBuilder,
    allreduce,
    alltoall,
    gather,
    scatter,
    schedule,
)


def test_only_the_ranks_that_messages_are_exchanged_with_are_asked_for() -> None:
    s, asked = schedule(get("direct", "gather"), 5), set[int]()

    def of(rank: int) -> RankSteps:
        asked.add(rank)
        return s.of(rank)

    mapped(s.of(3), of, frozenset(), LIMITS)
    assert asked == {0}
    mapped(s.of(0), of, frozenset(), LIMITS)
    assert asked == {0}  # it only receives, and what its peers push is for them to say


def into_scratch(b: ScheduleBuilder) -> None:
    b.send(b.input[0], to=1 - b.rank)
    b.recv(b.scratch[0], frm=1 - b.rank)


def read_later(b: ScheduleBuilder) -> None:
    b.chunks(1)
    if b.rank == 0:
        b.recv_reduce(b.output[0], frm=1)
        b.send(b.output[0], to=1)
    else:
        b.send(b.input[0], to=0)
        b.recv(b.output[0], frm=0)
        b.copy(b.output[0], b.scratch[0])
        b.copy(b.scratch[0], b.output[0])


@pytest.mark.parametrize(
    ("function", "size", "message"),
    [
        (get("double_binary_tree").function, 2, r"it uses 4 channels, want 1"),
        (get("ring").function, 3, r"rank \d step 2: send out\[\d\].*not an untouched chunk"),
        (get("one_shot").function, 2, r"ranks 0 and 1 both touch chunk 0 of rank 0, and one"),
        (into_scratch, 2, r"rank 0 step 1: recv scratch.*a peer can write to out only"),
        (read_later, 2, r"ranks 0 and 1 both touch chunk 0 of rank 1"),
    ],
)
def test_what_has_no_direct_form_says_why(
    function: Callable[[ScheduleBuilder], None], size: int, message: str
) -> None:
    assert issubclass(NotDirect, ScheduleError)
    with pytest.raises(NotDirect, match=f"^{function.__name__}: no direct form: {message}"):
        compile_all(algorithm(allreduce)(function), size, direct=True)


@algorithm(alltoall)
def exchange(b: ScheduleBuilder) -> None:
    b.copy(b.input[b.rank], b.output[b.rank])
    for k in range(1, b.size):
        b.send(b.input[b.rank + k], to=(b.rank + k) % b.size)
    for k in range(1, b.size):
        b.recv(b.output[b.rank - k], frm=(b.rank - k) % b.size)


def test_a_block_is_pushed_to_the_place_that_its_receiver_names() -> None:
    program = compile_all(exchange, 3, direct=True)[1]
    moves = [i for i in program.instructions if i.op is Op.REDUCE_COPY]
    pushes = [(m.sources[0], m.destinations[0]) for m in moves[1:]]
    assert [(s.place, s.chunk) for s, _ in pushes] == [(2, 2), (0, 0)]
    assert [(d.space, d.edge, d.place, d.chunk) for _, d in pushes] == [
        (Space.PEER_OUT, 2, 1, 2),
        (Space.PEER_OUT, 0, 1, 0),
    ]


def relay(b: ScheduleBuilder) -> None:
    if b.rank == 0:
        b.recv(b.output[2], frm=1)
        b.recv(b.output[1], frm=1)
    elif b.rank == 1:
        b.recv(b.output[2], frm=2)
        b.send(b.output[2], to=0)
        b.send(b.input[1], to=0)
    else:
        b.send(b.input[2], to=1)


def too_much(b: ScheduleBuilder) -> None:
    if b.rank == 0:
        b.send(b.input[0:2], to=1)
    elif b.rank == 1:
        b.recv(b.output[0:2], frm=0)


def test_a_peer_writes_only_what_the_output_has() -> None:
    message = r"rank 1 step 0: recv out\[2\] from 2: a peer can write to out only"
    with pytest.raises(NotDirect, match=f"^relay: no direct form: {message}"):
        compile_all(algorithm(gather)(relay), 3, direct=True)
    message = r"rank 1 step 0: recv out\[0:2\] from 0: a peer can write to out only"
    with pytest.raises(NotDirect, match=f"^too_much: no direct form: {message}"):
        compile_all(algorithm(scatter)(too_much), 2, direct=True)
