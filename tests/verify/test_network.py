from __future__ import annotations

from dataclasses import replace

import pytest
from assemble import (
    at,
    data_from,
    data_to,
    direct_exchange,
    done_from,
    done_to,
    exchange,
    inp,
    local,
    loop,
    move,
    out,
    peer_in,
    program,
    scratch,
    signal,
    slot,
    wait,
)

from pycoll.errors import ScheduleError, UsageError
from pycoll.program.isa import Flag, Op, Space
from pycoll.program.program import Instruction, Program
from pycoll.schedule import COLLECTIVES, allgather, allreduce, alltoall, broadcast
from pycoll.verify import verify_programs

COPY = move(inp(0), to=out(0))
END = Instruction(Op.END)


def alone(*channels: list[Instruction], **fields: object) -> list[Program]:
    """One rank's all-reduce."""
    return [program(0, 1, *channels, **fields)]  # type: ignore[arg-type]


def beside(changed: Program) -> list[Program]:
    """The exchange with another program for rank 0."""
    return [changed, exchange(1)]


def body(*instructions: Instruction) -> list[Program]:
    return alone(loop(*instructions), nchunks=4, nscratch=4)


def test_the_programs_that_the_faults_are_planted_in_are_right() -> None:
    assert verify_programs([exchange(0), exchange(1)], allreduce)
    assert verify_programs([direct_exchange(0), direct_exchange(1)], allreduce)
    assert verify_programs(alone(loop(COPY)), allreduce)
    assert verify_programs(alone(loop(COPY), [END]), allreduce)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 1), ("size", 3), ("digest", 8), ("nchunks", 2), ("widest", 2), ("flags", 1)],
)
def test_headers_that_differ_are_named(field: str, value: int) -> None:
    changed = replace(exchange(1), **{field: value})
    if field == "rank":
        changed = replace(exchange(1), rank=0)
    with pytest.raises(ScheduleError, match=rf"program 1 has {field} .*, want"):
        verify_programs([exchange(0), changed], allreduce)


def test_no_program_and_no_slot_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no programs to verify"):
        verify_programs([], allreduce)
    with pytest.raises(UsageError, match="slots is 0, want at least 1"):
        verify_programs(alone(loop(COPY)), allreduce, slots=0)


LINKED = {
    "no channel": (alone(), "has 0 channels, want 1 to 4"),
    "five channels": (alone(*[[END]] * 5), "has 5 channels, want 1 to 4"),
    "starts": ([replace(alone(loop(COPY))[0], channel_starts=(1,))], "channels start at"),
    "no chunk": (alone([END], nchunks=0), "has 0 chunks, want at least 1"),
    "peer beyond": (alone(loop(COPY), edges=[data_to(1)]), "rank 1 cannot be its peer"),
    "peer itself": (alone(loop(COPY), edges=[data_to(0)]), "rank 0 cannot be its peer"),
    "channel of an edge": (
        beside(replace(exchange(0), edges=(data_to(1, 2), data_from(1)))),
        "rank 0 has no channel 2",
    ),
    "local to itself": (
        alone(loop(COPY), edges=local(0, 0, 0)),
        "joins channel 0 with itself",
    ),
    "done when staged": (
        beside(replace(exchange(0), edges=(*exchange(0).edges, done_to(1)))),
        "touches no peer's memory",
    ),
    "listed twice": (
        beside(replace(exchange(0), edges=(*exchange(0).edges, data_to(1)))),
        "listed twice",
    ),
    "one end only": (
        beside(replace(exchange(0), edges=exchange(0).edges[:1])),
        "rank 1 lists its end, rank 0 does not list the RECV end",
    ),
    "widest": (
        [replace(p, widest=0) for p in (exchange(0), exchange(1))],
        "no slot holds more than 0 chunks, but one holds 1",
    ),
}


@pytest.mark.parametrize("fault", LINKED)
def test_programs_that_do_not_fit_together_are_refused(fault: str) -> None:
    programs, message = LINKED[fault]
    with pytest.raises(ScheduleError, match=message):
        verify_programs(programs, allreduce)


def with_code(code: list[Instruction], **fields: object) -> list[Program]:
    """One rank's program with exactly these instructions, targets as they stand."""
    fields = {"nchunks": 1, **fields}
    return [replace(alone([END], **fields)[0], instructions=tuple(code))]


LOOP, END_LOOP = Instruction(Op.LOOP, target=2), Instruction(Op.END_LOOP, target=0)
SHAPES = {
    "END in the middle": (with_code([LOOP, END, END_LOOP, END]), "END must be the last"),
    "no END": (with_code([LOOP, COPY, END_LOOP]), "END must be the last"),
    "data before LOOP": (with_code([COPY, END]), "moves data outside LOOP"),
    "data behind END_LOOP": (
        with_code([LOOP, COPY, END_LOOP, COPY, END]),
        "moves data outside LOOP",
    ),
    "LOOP left open": (with_code([LOOP, COPY, END]), "LOOP has no END_LOOP"),
    "LOOP twice": (with_code([LOOP, LOOP, END_LOOP, END]), "LOOP must be the first"),
    "END_LOOP alone": (with_code([END_LOOP, END]), "END_LOOP without LOOP"),
    "END_LOOP twice": (with_code([LOOP, COPY, END_LOOP, END_LOOP, END]), "END_LOOP without LOOP"),
    "targets": (
        with_code([LOOP._replace(target=3), COPY, END_LOOP, END]),
        "name #3 and #0 as their partners",
    ),
    "edge number": (body(wait(0)), "names edge 0 of 0"),
    "edge of another channel": (
        alone(loop(COPY, wait(1)), loop(signal(0)), edges=local(0, 0, 1)),
        "uses an edge of another channel",
    ),
    "wrong end of a count": (
        alone(loop(COPY, wait(0)), loop(wait(1)), edges=local(0, 0, 1)),
        "WAIT on the SEND end of a plain count",
    ),
    "sources": (body(move(*[inp(0)] * 9, to=out(0))), "has 9 sources and 1 destinations"),
    "destinations": (body(move(inp(0), to=())), "has 1 sources and 0 destinations"),
    "flags": (body(COPY._replace(flags=Flag(0x80))), "has flags 0x80, want 0 or SCALE"),
    "chunk range": (body(move(inp(3, 2), to=out(3, 2))), "chunks 3 to 4 of 4"),
    "same destination twice": (
        body(move(inp(0), to=(out(0), out(0)))),
        "its destinations overlap",
    ),
    "scratch overlaps itself": (
        body(move(inp(0, 2), to=scratch(0, 0, 2)), move(scratch(0, 0, 2), to=scratch(1, 0, 2))),
        "overlap in part",
    ),
    "chunks mixed": (body(move(inp(0), to=out(1))), "mixes chunks 0 to 0 with 1 to 1"),
    "place": (
        body(move(at(Space.IN, 0, place=1), to=out(0))),
        "chunk 0 lies at place 1 of IN",
    ),
    "peer's memory when staged": (
        body(move(peer_in(1, 0), to=out(0))),
        "touches a peer's memory, but the program is not DIRECT",
    ),
    "writes IN": (body(move(inp(0), to=inp(0))), "writes IN"),
    "slot of no edge": (body(move(slot(3, 0), to=out(0))), "names edge 3 of 0"),
    "slot of a count": (
        alone(loop(move(slot(0, 0), to=out(0))), loop(), edges=local(0, 0, 1)),
        "has no slot on this edge",
    ),
    "scratch bounds": (
        body(move(inp(0), to=scratch(4, 0))),
        "scratch places 4 to 4 of 4",
    ),
    "scratch of two channels": (
        alone(
            loop(move(inp(0), to=scratch(0, 0))), loop(move(inp(0), to=scratch(0, 0))), nscratch=1
        ),
        "also used by channel 0",
    ),
}


@pytest.mark.parametrize("fault", SHAPES)
def test_an_instruction_that_no_executor_runs_is_refused(fault: str) -> None:
    programs, message = SHAPES[fault]
    with pytest.raises(ScheduleError, match=message):
        verify_programs(programs, allreduce)


def test_a_slot_is_read_by_its_receiver_only() -> None:
    code = loop(wait(0), move(slot(0, 0), to=out(0)), signal(0))
    with pytest.raises(ScheduleError, match="reads a slot that it sends"):
        verify_programs(beside(program(0, 2, code, edges=exchange(0).edges)), allreduce)


def test_a_slot_has_no_places() -> None:
    wrong = at(Space.SLOT, 0, place=1, edge=0)
    code = loop(wait(0), move(inp(0), to=wrong), signal(0))
    with pytest.raises(ScheduleError, match="a slot at place 1, want 0"):
        verify_programs(beside(program(0, 2, code, edges=exchange(0).edges)), allreduce)


def test_a_direct_program_names_real_peers() -> None:
    code = loop(move(inp(0), peer_in(0, 0), to=out(0)), tail=(signal(0), wait(1)))
    edges = (done_to(1), done_from(1))
    changed = program(0, 2, code, edges=edges, nchunks=2, direct=True)
    with pytest.raises(ScheduleError, match="PEER_IN of rank 0, which is no peer"):
        verify_programs([changed, direct_exchange(1)], allreduce)


def test_done_stands_behind_the_loop_and_data_edges_inside() -> None:
    edges = (done_to(1), done_from(1))
    code = loop(move(inp(0), peer_in(1, 0), to=out(0)), signal(0), wait(1))
    changed = program(0, 2, code, edges=edges, nchunks=2, direct=True)
    with pytest.raises(ScheduleError, match="a DONE edge is used behind END_LOOP"):
        verify_programs([changed, direct_exchange(1)], allreduce)
    code = loop(COPY, tail=(wait(0), signal(0)))
    with pytest.raises(ScheduleError, match="every other edge between LOOP and END_LOOP"):
        verify_programs(beside(program(0, 2, code, edges=exchange(0).edges)), allreduce)


OUTSIDE = {
    "reads IN of another": (
        "allgather",
        loop(move(inp(1), to=out(1))),
        "touches IN of rank 0 at chunks 1 to 1, but allgather gives it 0 to 0",
    ),
    "reads IN in part of another": (
        "allgather",
        loop(move(inp(0, 2), to=out(0, 2))),
        "touches IN of rank 0 at chunks 0 to 1, but allgather gives it 0 to 0",
    ),
    "writes OUT of another": (
        "reduce_scatter",
        loop(move(inp(1), to=out(1))),
        "touches OUT of rank 0 at chunks 1 to 1, but reduce_scatter gives it 0 to 0",
    ),
    "reads OUT of another": (
        "scatter",
        loop(move(out(1), to=scratch(0, 1))),
        "touches OUT of rank 0 at chunks 1 to 1, but scatter gives it 0 to 0",
    ),
}


@pytest.mark.parametrize("fault", OUTSIDE)
def test_only_what_the_collective_gives_is_touched(fault: str) -> None:
    name, code, message = OUTSIDE[fault]
    sides = [program(r, 2, [END] if r else code, nchunks=2, nscratch=1) for r in (0, 1)]
    with pytest.raises(ScheduleError, match=f"rank 0, channel 0, #1: {message}"):
        verify_programs(sides, COLLECTIVES[name])


def test_a_rank_without_input_or_output_touches_none() -> None:
    silent = program(0, 2, [END])
    reads = program(1, 2, loop(move(inp(0), to=out(0))))
    message = "rank 1, channel 0, #1: touches IN of rank 1 at chunks 0 to 0, but broadcast gives"
    with pytest.raises(ScheduleError, match=f"{message} it none"):
        verify_programs([silent, reads], broadcast)
    message = "rank 1, channel 0, #1: touches OUT of rank 1 at chunks 0 to 0, but reduce gives it"
    with pytest.raises(ScheduleError, match=f"{message} none"):
        verify_programs([silent, reads], COLLECTIVES["reduce"])


def test_a_peer_touches_only_what_the_owner_has() -> None:
    edges = (done_to(1), done_from(1))
    code = loop(move(peer_in(1, 0), to=out(0)), tail=(signal(0), wait(1)))
    sides = [
        program(0, 2, code, edges=edges, nchunks=2, direct=True),
        program(1, 2, [END], nchunks=2, direct=True),
    ]
    with pytest.raises(ScheduleError, match="touches PEER_IN of rank 1 at chunks 0 to 0, but all"):
        verify_programs([sides[0], replace(sides[1], edges=(done_to(0), done_from(0)))], allgather)


def test_chunks_cut_blocks_into_equal_parts() -> None:
    sides = [program(rank, 2, [END], nchunks=3) for rank in range(2)]
    with pytest.raises(ScheduleError, match=r"^3 chunks, want a multiple of 2: allgather"):
        verify_programs(sides, allgather)
    with pytest.raises(ScheduleError, match=r"^3 chunks, want 2: alltoall"):
        verify_programs(sides, alltoall)


def test_nothing_is_folded_where_there_is_no_operation() -> None:
    fold = program(0, 1, loop(move(inp(0), inp(0), to=out(0))))
    divide = program(0, 1, loop(move(inp(0), to=out(0), scale=True)))
    for one in (fold, divide):
        with pytest.raises(ScheduleError, match=r"#1: folds or divides, but broadcast has no oper"):
            verify_programs([one], broadcast)
    with pytest.raises(UsageError, match=r"^broadcast folds nothing, so it has no average$"):
        verify_programs([fold], broadcast, average=True)


def test_ranges_of_places_may_not_overlap_in_part() -> None:
    turned = move(at(Space.OUT, 0, 2, place=0), to=at(Space.OUT, 0, 2, place=1))
    sides = [program(rank, 3, loop(turned), nchunks=3) for rank in range(3)]
    with pytest.raises(ScheduleError, match="#1: a source and a destination overlap in part"):
        verify_programs(sides, alltoall)
