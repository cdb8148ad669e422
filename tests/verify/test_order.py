from __future__ import annotations

import pytest
from assemble import (
    at,
    direct_exchange,
    done_from,
    done_to,
    inp,
    local,
    loop,
    move,
    out,
    peer_in,
    peer_out,
    program,
    scratch,
    signal,
    wait,
)

from pycoll.errors import RaceError
from pycoll.program.isa import Space
from pycoll.program.program import Instruction, Program
from pycoll.schedule import allreduce, alltoall
from pycoll.verify import verify_programs

WRITE = move(inp(0), to=out(0))
AGAIN = move(out(0), to=out(0))
EDGES = (*local(0, 0, 1), *local(0, 1, 0))


def two_channels(first: list[Instruction], second: list[Instruction]) -> list[Program]:
    return [program(0, 1, loop(*first), loop(*second), edges=EDGES, nscratch=1)]


def test_a_local_edge_orders_two_channels() -> None:
    assert verify_programs(two_channels([WRITE, signal(0)], [wait(1), AGAIN]), allreduce)


def test_a_write_without_order_behind_a_write_is_a_race() -> None:
    tail = (signal(0), wait(1))
    own = loop(move(inp(0), peer_in(1, 0), to=out(0)), tail=tail)
    push = loop(move(inp(0), to=peer_out(0, 0)), tail=tail)
    programs = [
        program(rank, 2, code, edges=(done_to(1 - rank), done_from(1 - rank)), direct=True)
        for rank, code in enumerate((own, push))
    ]
    message = "rank 1, channel 0, #1: writes chunk 0 of rank 0, which rank 0, channel 0 writes"
    with pytest.raises(RaceError, match=message) as caught:
        verify_programs(programs, allreduce)
    assert "-> #1 out[0] = in[0] . peer_in 1[0]" in str(caught.value)
    assert vars(caught.value) == {"rank": 1, "channel": 0, "instruction": 1, "chunk": 0}


def test_a_read_without_order_behind_a_write_is_a_race() -> None:
    message = r"#5: reads chunk 0 of rank 0, which rank 0, channel 0 writes with no order"
    with pytest.raises(RaceError, match=message):
        verify_programs(two_channels([WRITE], [AGAIN]), allreduce)


def test_a_write_without_order_behind_a_read_is_a_race() -> None:
    # The signal stands before the read, so it orders the write only.
    first = [WRITE, signal(0), move(out(0), to=scratch(0, 0))]
    programs = [program(0, 1, loop(*first), loop(wait(1), AGAIN), edges=EDGES, nscratch=1)]
    with pytest.raises(RaceError, match=r"writes chunk 0 .* channel 0 reads with no order"):
        verify_programs(programs, allreduce)


def test_in_place_a_read_of_the_input_races_with_a_write_of_the_output() -> None:
    message = r"reads chunk 0 of rank 0 \(IN and OUT are one memory in place\), which"
    with pytest.raises(RaceError, match=message):
        verify_programs(two_channels([WRITE], [move(inp(0), to=scratch(0, 0))]), allreduce)


def direct(rank: int, chunk: int, tail: tuple[Instruction, ...]) -> Program:
    peer = 1 - rank
    fold = move(inp(chunk), peer_in(peer, chunk), to=(out(chunk), peer_out(peer, chunk)))
    edges = (done_to(peer), done_from(peer))
    return program(rank, 2, loop(fold, tail=tail), edges=edges, nchunks=2, direct=True)


def test_two_ranks_that_write_one_chunk_race() -> None:
    tail = (signal(0), wait(1))
    message = "reads chunk 0 of rank 1.*, which rank 0, channel 0 writes"
    with pytest.raises(RaceError, match=message):
        verify_programs([direct(0, 0, tail), direct(1, 0, tail)], allreduce)


def test_a_rank_waits_for_done_of_every_peer_that_touches_it() -> None:
    assert verify_programs([direct_exchange(0), direct_exchange(1)], allreduce)
    code = loop(move(inp(0), peer_in(1, 0), to=(out(0), peer_out(1, 0))), tail=(signal(0),))
    changed = program(0, 2, code, edges=(done_to(1),), nchunks=2, direct=True)
    other = loop(move(inp(1), peer_in(0, 1), to=(out(1), peer_out(0, 1))), tail=(wait(0),))
    silent = program(1, 2, other, edges=(done_from(0),), nchunks=2, direct=True)
    message = "rank 1, .*: touches memory of rank 0, which does not wait for this rank's DONE"
    with pytest.raises(RaceError, match=message):
        verify_programs([changed, silent], allreduce)


def test_where_input_and_output_are_never_one_their_accesses_are_free() -> None:
    first, second = loop(move(inp(0), to=out(0))), loop(move(inp(0), to=scratch(0, 0)))
    assert verify_programs([program(0, 1, first, second, nscratch=1)], alltoall)


def push(rank: int, *places: int) -> Program:
    """One side of an all-to-all of two: the own block stays, the other goes to ``places``."""
    peer = 1 - rank
    own = at(Space.OUT, rank, place=rank)
    moves = [move(inp(rank), to=own)]
    moves += [move(inp(peer), to=at(Space.PEER_OUT, peer, place=p, edge=peer)) for p in places]
    edges = (done_to(peer), done_from(peer))
    code = loop(*moves, tail=(signal(0), wait(1)))
    return program(rank, 2, code, edges=edges, nchunks=2, direct=True)


def test_blocks_cross_into_the_places_of_their_senders() -> None:
    assert verify_programs([push(0, 0), push(1, 1)], alltoall)
    with pytest.raises(RaceError, match="writes chunk 1 of rank 1, which rank"):
        verify_programs([push(0, 0, 1), push(1, 1)], alltoall)


def test_an_input_that_is_never_the_output_may_still_not_be_read_after_its_owner_has_gone() -> None:
    reads = [move(inp(0), to=out(0)), move(peer_in(1, 0), to=at(Space.OUT, 0, place=1))]
    puts = [move(inp(1), to=out(1)), move(peer_in(0, 1), to=at(Space.OUT, 1, place=0))]
    silent = program(1, 2, loop(*puts), nchunks=2, direct=True)
    changed = program(0, 2, loop(*reads), nchunks=2, direct=True)
    with pytest.raises(RaceError, match=r"touches memory of rank [01], which does not wait"):
        verify_programs([changed, silent], alltoall)
