from __future__ import annotations

import pytest
from assemble import (
    Code,
    data_from,
    data_to,
    exchange,
    inp,
    local,
    loop,
    move,
    out,
    program,
    scratch,
    signal,
    slot,
    wait,
)

from pycoll.errors import PostconditionError, RaceError, ScheduleError
from pycoll.program.program import Program
from pycoll.schedule import allreduce
from pycoll.verify import verify_programs

SEND = [wait(0), move(inp(0), to=slot(0, 0)), signal(0)]
RECV = [wait(1), move(inp(0), slot(1, 0), to=out(0)), signal(1)]


def beside(code: Code, other: Program | None = None, nscratch: int = 0) -> list[Program]:
    """The exchange with other code for rank 0."""
    edges = (data_to(1), data_from(1))
    return [program(0, 2, code, edges=edges, nscratch=nscratch), other or exchange(1)]


FAULTS = {
    "WAIT for a slot doubled": (
        loop(wait(0), *SEND, *RECV),
        ScheduleError,
        r"rank 0, channel 0, #2: waits for a slot before it has filled the last one",
    ),
    "WAIT for a message doubled": (
        loop(*SEND, wait(1), *RECV),
        ScheduleError,
        r"rank 0, channel 0, #5: waits for a message before it has consumed the last one",
    ),
    "WAIT for a slot dropped": (
        loop(*SEND[1:], *RECV),
        RaceError,
        "#1: writes a slot that may be in use: no WAIT orders it after rank 1's signal",
    ),
    "WAIT for a slot behind the write": (
        loop(SEND[1], SEND[0], SEND[2], *RECV),
        RaceError,
        "#1: writes a slot that may be in use",
    ),
    "SIGNAL filled doubled": (
        loop(*SEND, signal(0), *RECV),
        RaceError,
        "#4: fills a slot that may be in use: no WAIT",
    ),
    "WAIT for a message dropped": (
        loop(*SEND, *RECV[1:]),
        RaceError,
        "#4: reads a slot that may not be filled yet: no WAIT",
    ),
    "SIGNAL consumed before the read": (
        loop(*SEND, RECV[0], RECV[2], RECV[1]),
        RaceError,
        "#6: reads a slot that may not be filled yet",
    ),
    "SIGNAL consumed doubled": (
        loop(*SEND, *RECV, signal(1)),
        RaceError,
        "#7: consumes what may not be there",
    ),
    "OUT read before it is written": (
        loop(*SEND, wait(1), move(out(0), slot(1, 0), to=out(0)), signal(1)),
        PostconditionError,
        "#5: reads chunk 0 of rank 0, which was never written",
    ),
    "SCRATCH read before it is written": (
        loop(move(scratch(0, 0), to=out(0)), *SEND, *RECV),
        PostconditionError,
        "#1: reads scratch place 0 of rank 0, which was never written",
    ),
    "SCRATCH kept from the tile before": (
        # Written behind its only read: the first tile reads nothing, the second a stale piece.
        loop(*SEND, *RECV, move(scratch(0, 0), to=out(0)), move(out(0), to=scratch(0, 0))),
        PostconditionError,
        "#7: reads scratch place 0 of rank 0, which was never written",
    ),
    "IN read after OUT was written": (
        loop(*SEND, *RECV, move(inp(0), to=scratch(0, 0))),
        RaceError,
        "#7: reads the input at chunk 0 of rank 0 after the output was written there; in place",
    ),
    "own contribution twice": (
        loop(*SEND, wait(1), move(inp(0), inp(0), slot(1, 0), to=out(0)), signal(1)),
        PostconditionError,
        "#5: folds in the contribution of rank 0 a second time",
    ),
    "SCALE on a part": (
        loop(move(inp(0), to=scratch(0, 0), scale=True), *SEND, *RECV),
        PostconditionError,
        "#1: divides a sum that lacks the contribution of rank 1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_rank_is_found_where_it_is(fault: str) -> None:
    code, kind, message = FAULTS[fault]
    with pytest.raises(kind, match=message):
        verify_programs(beside(code, nscratch=1), allreduce)


def test_a_copy_of_IN_in_OUT_may_be_followed_by_reads_of_IN() -> None:
    code = loop(move(inp(0), to=out(0)), *SEND, *RECV)
    assert verify_programs(beside(code), allreduce)


def test_a_message_that_was_never_filled_is_not_read() -> None:
    code = loop(wait(0), signal(0), *RECV)
    with pytest.raises(PostconditionError, match=r"rank 1, .*#5: reads a slot that was signalled"):
        verify_programs(beside(code), allreduce)


def test_a_slot_holds_the_chunks_that_are_read_from_it() -> None:
    def side(rank: int, sent: int) -> Program:
        first = loop(
            wait(0),
            move(inp(sent), to=slot(0, sent)),
            signal(0),
            wait(1),
            move(inp(0), slot(1, 0), to=out(0)),
            signal(1),
        )
        return program(rank, 2, first, edges=(data_to(1 - rank), data_from(1 - rank)), nchunks=2)

    message = r"rank 0, .*#5: reads chunks 0 to 0 from a slot that holds 1 to 1"
    with pytest.raises(PostconditionError, match=message) as caught:
        verify_programs([side(0, 0), side(1, 1)], allreduce)
    assert vars(caught.value) == {"rank": 0, "channel": 0, "instruction": 5, "chunk": 0}


def test_scratch_gives_back_the_chunk_that_was_put_there() -> None:
    code = loop(move(inp(1), to=scratch(0, 1)), move(scratch(0, 0), to=out(0)))
    with pytest.raises(PostconditionError, match="reads chunk 0 at scratch place 0 of rank 0, wh"):
        verify_programs([program(0, 1, code, nchunks=2, nscratch=1)], allreduce)


def averaged(rank: int, *rest: int) -> Program:
    """The exchange with SCALE, and then whatever of the faults below."""
    fold = move(inp(0), slot(1, 0), to=(out(0), scratch(0, 0)), scale=True)
    faults = {
        0: move(out(0), to=out(0), scale=True),
        1: move(out(0), inp(0), to=out(0)),
    }
    code = loop(*SEND, wait(1), fold, signal(1), *(faults[f] for f in rest))
    edges = (data_to(1 - rank), data_from(1 - rank))
    return program(rank, 2, code, edges=edges, nscratch=1)


def test_an_average_is_divided_once() -> None:
    assert verify_programs([averaged(0), averaged(1)], allreduce, average=True)
    with pytest.raises(PostconditionError, match="#7: divides a value that an average has already"):
        verify_programs([averaged(0, 0), averaged(1)], allreduce, average=True)


def test_a_second_channel_is_ordered_by_a_local_edge() -> None:
    edges = local(0, 0, 1)
    first = loop(move(inp(0), to=out(0)), signal(0))
    second = loop(wait(1), move(out(0), to=out(0)))
    assert verify_programs([program(0, 1, first, second, edges=edges)], allreduce)
