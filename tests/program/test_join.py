"""What sends one value is one REDUCE_COPY on a GPU: joined Programs are proved as others are."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pycoll.algorithms import BUILTIN, algorithm, get
from pycoll.errors import DeadlockError, ScheduleError
from pycoll.program.isa import MAX_DESTINATIONS, Op, Space
from pycoll.program.join import joined
from pycoll.program.lower import compile_all, facts_of
from pycoll.program.program import Program
from pycoll.schedule import Algorithm, NotDirect, ScheduleBuilder, broadcast, schedule
from pycoll.verify.prove import verify_programs


def join_all(
    a: Algorithm, size: int, *, direct: bool = False, average: bool = False
) -> list[Program]:
    programs = compile_all(a, size, direct=direct, average=average)
    return [joined(program, MAX_DESTINATIONS) for program in programs]


def stores(program: Program) -> list[int]:
    """Return how many destinations each REDUCE_COPY has."""
    return [len(i.destinations) for i in program.instructions if i.op is Op.REDUCE_COPY]


def traffic(program: Program) -> dict[object, list[object]]:
    """Return what happens on each edge, in order, and what is moved there."""
    seen: dict[object, list[object]] = defaultdict(list)
    for i in program.instructions:
        if i.op in (Op.WAIT, Op.SIGNAL):
            seen[program.edges[i.edge]].append(i.op)
        for o in i.sources + i.destinations:
            if o.space is Space.SLOT:
                seen[program.edges[o.edge]].append((o.chunk, o.nchunks))
    return seen


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 12])
def test_every_built_in_is_proved_when_it_is_joined(size: int) -> None:
    proved = 0
    for a in BUILTIN:
        for direct in (False, True):
            for average in (False, True)[: 1 + a.collective.reduces]:
                try:
                    programs = join_all(a, size, direct=direct, average=average)
                except (NotDirect, ScheduleError):  # there is none of it, or not at this size
                    continue
                if direct or facts_of(schedule(a, size)).fused:
                    verify_programs(programs, a.collective, average=average)
                    proved += 1
    assert proved > 60


@pytest.mark.parametrize(
    ("collective", "name", "direct", "want"),
    [
        # Sends its input to seven, and folds eight; the result is nobody else's.
        ("allreduce", "one_shot", False, [7, 1]),
        # Its part to eight, once it has folded it.
        ("allreduce", "two_shot", True, [8]),
        ("allgather", "direct", True, [8]),
    ],
)
def test_how_many_are_stored_to_at_once(
    collective: str, name: str, direct: bool, want: list[int]
) -> None:
    program = join_all(get(name, collective), 8, direct=direct)[3]
    assert stores(program) == want


def test_what_passes_on_an_edge_stays_as_it_was() -> None:
    for a in BUILTIN:
        try:
            programs = compile_all(a, 9)
        except ScheduleError:
            continue
        for program in programs:
            assert traffic(joined(program, MAX_DESTINATIONS)) == traffic(program)


@algorithm(broadcast)
def to_all_twice(b: ScheduleBuilder) -> None:
    """Rank 0 sends its input to all others, and then again, from the last one on."""
    b.chunks(1)
    peers = list(range(1, b.size))
    if b.rank == 0:
        for peer in (*peers, *reversed(peers)):
            b.send(b.input[0], to=peer)
        b.copy(b.input[0], b.output[0])
    else:
        b.recv(b.output[0], frm=0)
        b.recv(b.output[0], frm=0)


def test_what_a_rank_is_sent_twice_is_two_messages() -> None:
    """Nothing of the second round goes with the end of the first: so `feasible` has run it."""
    programs = join_all(to_all_twice, 11)
    verify_programs(programs, to_all_twice.collective)
    assert stores(programs[0]) == [8, 2, 8, 3]  # the last one is the copy


@algorithm(broadcast)
def one_behind_the_other(b: ScheduleBuilder) -> None:
    """Rank 2 takes what rank 0 has sent it after what it gets by way of rank 1."""
    b.chunks(3)
    if b.rank == 0:
        for c, peer in ((0, 2), (1, 2), (2, 1), (2, 2), (0, 1), (1, 1)):
            b.send(b.input[c], to=peer)
        b.copy(b.input[:], b.output[:])
    elif b.rank == 1:
        b.recv(b.output[2], frm=0)
        b.send(b.output[2], to=2)
        b.recv(b.output[0], frm=0)
        b.recv(b.output[1], frm=0)
    else:
        b.recv(b.output[2], frm=1)
        for c in range(3):
            b.recv(b.output[c], frm=0)


def test_what_would_wait_for_ever_is_not_joined_where_feasible_is_asked() -> None:
    programs = compile_all(one_behind_the_other, 3)
    verify_programs(programs, broadcast, slots=2)
    assert not facts_of(schedule(one_behind_the_other, 3)).fused
    with pytest.raises(DeadlockError):
        verify_programs([joined(p, MAX_DESTINATIONS) for p in programs], broadcast, slots=2)


def test_loops_name_their_ends_and_channels_their_starts() -> None:
    for program in join_all(get("double_binary_tree", "allreduce"), 8):
        code = program.instructions
        for at, i in enumerate(code):
            if i.op is Op.LOOP:
                assert (code[i.target].op, code[i.target].target) == (Op.END_LOOP, at)
        assert all(code[start - 1].op is Op.END for start in program.channel_starts[1:])
        assert len(program.channel_starts) == 4
        assert Program.from_bytes(program.to_bytes()) == program
