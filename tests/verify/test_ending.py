from __future__ import annotations

from dataclasses import replace

import pytest
from assemble import (
    Code,
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
    peer_out,
    program,
    scratch,
    signal,
    slot,
    wait,
)

from pycoll.errors import DeadlockError, PostconditionError, ScheduleError
from pycoll.program.program import Program
from pycoll.schedule import allreduce, alltoall, broadcast
from pycoll.verify import verify_programs

SEND = [wait(0), move(inp(0), to=slot(0, 0)), signal(0)]
RECV = [wait(1), move(inp(0), slot(1, 0), to=out(0)), signal(1)]


def side(rank: int, code: Code, size: int = 2) -> Program:
    right, left = (rank + 1) % size, (rank - 1) % size
    return program(rank, size, code, edges=(data_to(right), data_from(left)))


def test_a_circle_of_waits_is_drawn() -> None:
    with pytest.raises(DeadlockError) as caught:
        verify_programs([side(r, loop(*RECV, *SEND)) for r in (0, 1)], allreduce)
    assert str(caught.value) == (
        "rank 0, channel 0, #1: waits in a circle with 4 slots per edge: "
        "rank 0 at #1 (tile 0) waits for message 1 of rank 1; "
        "rank 1 at #1 (tile 0) waits for message 1 of rank 0\n"
        "\n"
        "   rank 0 channel 0                rank 1 channel 0\n"
        "   #0 LOOP over tiles up to 7      #0 LOOP over tiles up to 7\n"
        "-> #1 WAIT slot from 1          -> #1 WAIT slot from 0"
    )


def test_a_circle_of_many_ranks_is_listed_in_short() -> None:
    message = r"rank 7 at #1 .* waits for message 1 of rank 6; and 4 more|and 4 more"
    with pytest.raises(DeadlockError, match=message) as caught:
        verify_programs([side(r, loop(*RECV, *SEND), 12) for r in range(12)], allreduce)
    assert max(map(len, str(caught.value).splitlines()[1:])) < 200


def test_too_few_slots_are_a_circle_of_full_edges() -> None:
    def twice(rank: int) -> Program:
        again = [wait(1), move(slot(1, 0), to=scratch(0, 0)), signal(1)]
        return replace(side(rank, loop(*SEND, *SEND, *RECV, *again)), nscratch=1)

    programs = [twice(0), twice(1)]
    assert verify_programs(programs, allreduce, slots=2)
    with pytest.raises(DeadlockError, match=r"rank 1 to free a slot \(1 of 1 filled\)"):
        verify_programs(programs, allreduce, slots=1)


def test_a_wait_for_a_rank_that_has_ended_names_it() -> None:
    silent = side(1, loop(*RECV))
    with pytest.raises(DeadlockError, match="waits for message 1 of rank 1; rank 1 has ended"):
        verify_programs([exchange(0), silent], allreduce)


def test_a_dropped_credit_stops_a_later_tile() -> None:
    with pytest.raises(ScheduleError, match="rank 1 waits for 1 messages of rank 0 and consumes 0"):
        verify_programs([exchange(0), side(1, loop(*SEND, *RECV[:2]))], allreduce)


def test_a_message_may_not_be_left_for_the_next_call() -> None:
    two = loop(*SEND, *SEND, *RECV)
    with pytest.raises(ScheduleError, match="rank 0 sends 2 messages to rank 1, which waits for 1"):
        verify_programs([side(0, two), exchange(1)], allreduce)


def test_a_slot_that_is_asked_for_is_filled() -> None:
    with pytest.raises(ScheduleError, match="rank 0 takes 2 slots to rank 1 and fills 1"):
        verify_programs([side(0, loop(*SEND, *RECV, wait(0))), exchange(1)], allreduce)


def test_a_local_signal_may_not_be_left() -> None:
    edges = local(0, 0, 1)
    first, second = loop(move(inp(0), to=out(0)), signal(0)), loop()
    message = "rank 0 channel 0 sends 1 signals to rank 0 channel 1, which waits for 0"
    with pytest.raises(ScheduleError, match=message):
        verify_programs([program(0, 1, first, second, edges=edges)], allreduce)


def test_a_done_may_not_be_left() -> None:
    code = loop(move(inp(0), peer_in(1, 0), to=(out(0), peer_out(1, 0))), tail=(signal(0),))
    edges = (done_to(1), done_from(1))
    changed = program(0, 2, code, edges=edges, nchunks=2, direct=True)
    with pytest.raises(ScheduleError, match="rank 1 sends 1 DONEs to rank 0, which waits for 0"):
        verify_programs([changed, direct_exchange(1)], allreduce)


def test_output_that_nobody_writes_is_found() -> None:
    code = loop(*SEND, wait(1), signal(1))
    with pytest.raises(PostconditionError, match=r"rank 0, .*: never writes chunk 0 of OUT"):
        verify_programs([side(0, code), exchange(1)], allreduce)


def test_a_contribution_that_lacks_is_named() -> None:
    code = loop(*SEND, wait(1), move(inp(0), to=out(0)), signal(1))
    message = "chunk 0 of OUT lacks the contribution of rank 1"
    with pytest.raises(PostconditionError, match=message):
        verify_programs([side(0, code), exchange(1)], allreduce)


def test_a_contribution_that_must_not_be_there_is_named() -> None:
    first = replace(allreduce, name="first", after=lambda rank, block, size: frozenset((0,)))
    message = "chunk 0 of OUT holds a contribution of rank 1 that it must not"
    with pytest.raises(PostconditionError, match=message):
        verify_programs([exchange(0), exchange(1)], first)


def averaging(rank: int, scale: bool) -> Program:
    fold = move(inp(0), slot(1, 0), to=out(0), scale=scale)
    return side(rank, loop(*SEND, wait(1), fold, signal(1)))


def test_sums_and_averages_are_told_apart() -> None:
    sums, averages = ([averaging(r, s) for r in (0, 1)] for s in (False, True))
    assert verify_programs(sums, allreduce)
    assert verify_programs(averages, allreduce, average=True)
    with pytest.raises(PostconditionError, match="holds a sum that was never divided"):
        verify_programs(sums, allreduce, average=True)
    with pytest.raises(PostconditionError, match="holds an average, but a sum was asked for"):
        verify_programs(averages, allreduce)


def test_ranks_that_fold_in_another_order_do_not_get_the_same_bits() -> None:
    def star(rank: int, order: tuple[int, ...]) -> Program:
        others = [p for p in range(3) if p != rank]
        edges = [end(p) for p in others for end in (data_to, data_from)]
        sends = [
            i
            for k in range(2)
            for i in (wait(2 * k), move(inp(0), to=slot(2 * k, 0)), signal(2 * k))
        ]
        values = [inp(0) if p == rank else slot(2 * others.index(p) + 1, 0) for p in order]
        code = loop(*sends, wait(1), wait(3), move(*values, to=out(0)), signal(1), signal(3))
        return program(rank, 3, code, edges=edges)

    assert verify_programs([star(r, (0, 1, 2)) for r in range(3)], allreduce)
    message = r"rank 2, .*: chunk 0 of OUT is .* but on rank 0 .*: not the same bits"
    with pytest.raises(PostconditionError, match=message):
        verify_programs([star(0, (0, 1, 2)), star(1, (0, 1, 2)), star(2, (1, 2, 0))], allreduce)


def test_a_block_that_belongs_elsewhere_is_named() -> None:
    def swap(rank: int, sent: int) -> Program:
        peer = 1 - rank
        code = loop(
            wait(0),
            move(inp(sent), to=slot(0, sent)),
            signal(0),
            wait(1),
            move(slot(1, peer), to=out(peer)),
            signal(1),
            move(inp(rank), to=out(rank)),
        )
        return program(rank, 2, code, edges=(data_to(peer), data_from(peer)), nchunks=2)

    assert verify_programs([swap(0, 1), swap(1, 0)], alltoall)
    message = "rank 1, .*: chunk 0 of OUT holds chunk 0 of rank 0, want chunk 1"
    with pytest.raises(PostconditionError, match=message):
        verify_programs([swap(0, 0), swap(1, 0)], alltoall)


def test_a_rank_that_the_root_does_not_reach_is_named() -> None:
    copies = program(0, 2, loop(move(inp(0), to=out(0))))
    with pytest.raises(PostconditionError, match=r"rank 1, .*: never writes chunk 0 of OUT"):
        verify_programs([copies, program(1, 2, loop())], broadcast)
