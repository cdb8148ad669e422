from __future__ import annotations

import pytest

from pycoll.algorithms import algorithm
from pycoll.errors import ScheduleError
from pycoll.passes.hide import compact, hide
from pycoll.passes.moves import Location, Move, Where
from pycoll.program.lower import compile_all
from pycoll.schedule import ScheduleBuilder, reduce


def out(chunk: int, n: int = 1) -> Location:
    return Location(Where.OUT, 0, chunk, chunk, n)


def scratch(place: int, chunk: int, n: int = 1) -> Location:
    return Location(Where.SCRATCH, 0, place, chunk, n)


def slot(chunk: int, n: int = 1) -> Location:
    return Location(Where.SLOT, 1, 0, chunk, n)


def copied(source: Location, target: Location, channel: int = 0) -> Move:
    return Move(channel, (source,), (target,))


def test_places_that_the_output_lacks_are_scratch() -> None:
    moves = [copied(slot(3, 2), out(3, 2)), copied(out(4), slot(4)), copied(slot(1), out(1))]
    assert hide(moves, 0, range(2), 10) == [
        copied(slot(3, 2), scratch(13, 3, 2)),
        copied(scratch(14, 4), slot(4)),
        moves[2],
    ]


def test_a_range_that_lies_in_part_in_the_output_is_scratch_and_copied_at_the_end() -> None:
    moves = [copied(slot(0, 4), out(0, 4)), copied(out(2, 2), slot(2, 2))]
    assert hide(moves, 0, range(2), 0) == [
        copied(slot(0, 4), scratch(0, 0, 4)),
        copied(scratch(2, 2, 2), slot(2, 2)),
        copied(scratch(0, 0, 2), out(0, 2)),
    ]


def test_the_last_fold_leaves_scratch_for_the_output() -> None:
    fold = Move(0, (out(1), slot(1)), (out(1),))
    moves = [copied(slot(0, 2), out(0, 2)), fold, copied(out(1), slot(1))]
    assert hide(moves, 0, range(1, 2), 0) == [
        copied(slot(0, 2), scratch(0, 0, 2)),
        Move(0, (scratch(1, 1), slot(1)), (out(1),)),
        copied(out(1), slot(1)),
    ]


def test_a_read_of_both_brings_what_lies_in_scratch_home_first() -> None:
    moves = [
        copied(slot(0, 3), out(0, 3), channel=2),
        copied(slot(0), out(0)),
        copied(out(0, 2), slot(0, 2)),
        copied(out(1), slot(1)),
    ]
    assert hide(moves, 0, range(2), 0) == [
        copied(slot(0, 3), scratch(0, 0, 3), channel=2),
        moves[1],
        copied(scratch(1, 1), out(1), channel=2),
        moves[2],
        moves[3],
    ]


def test_scratch_of_two_channels_is_copied_by_each() -> None:
    moves = [copied(slot(c, 2), out(c, 2), channel=c // 2) for c in (0, 2)]
    moves.append(copied(slot(3, 2), out(3, 2), channel=1))
    assert hide(moves, 0, range(4), 0)[3:] == [
        copied(scratch(0, 0, 2), out(0, 2), channel=0),
        copied(scratch(2, 2, 2), out(2, 2), channel=1),
    ]


def test_what_stands_for_output_belongs_to_one_channel() -> None:
    @algorithm(reduce)
    def two_channels(b: ScheduleBuilder) -> None:
        b.chunks(1)
        if b.rank == 0:
            b.recv_reduce(b.output[0], frm=1)
        elif b.rank == 1:
            b.recv_reduce(b.output[0], frm=2)
            with b.channel(1):
                b.recv_reduce(b.output[0], frm=2)
            b.send(b.output[0], to=0)
        else:
            b.send(b.input[0], to=1)
            with b.channel(1):
                b.send(b.input[0], to=1)

    message = r"^rank 1: scratch stands for out\[0\], which is used from channels 0 and 1; scratch"
    with pytest.raises(ScheduleError, match=message):
        compile_all(two_channels, 3)


def test_gaps_are_closed_and_ranges_stay_whole() -> None:
    moves = [copied(scratch(1, 0), scratch(7, 0)), copied(scratch(9, 3, 2), slot(3, 2))]
    assert compact(moves, 5) == (
        [copied(scratch(1, 0), scratch(5, 0)), copied(scratch(6, 3, 2), slot(3, 2))],
        8,
    )
    assert compact([], 5) == ([], 5)
