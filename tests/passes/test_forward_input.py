from pycoll.passes.forward_input import forward_input
from pycoll.passes.moves import Location, Move, Where


def out(chunk: int, n: int = 1) -> Location:
    return Location(Where.OUT, 0, chunk, chunk, n)


def inp(chunk: int, n: int = 1) -> Location:
    return Location(Where.IN, 0, chunk, chunk, n)


SLOT = Location(Where.SLOT, 1, 0, 0, 1)


def test_the_first_read_is_of_the_input_and_later_ones_are_not() -> None:
    fold = Move(0, (out(0), SLOT), (out(0),))
    send = Move(0, (out(0),), (SLOT,))
    assert forward_input([send, fold, send], range(1), range(1)) == [
        Move(0, (inp(0),), (SLOT,)),
        Move(0, (inp(0), SLOT), (out(0),)),
        send,
    ]


def test_a_range_half_written_is_made_whole() -> None:
    moves = [Move(0, (SLOT,), (out(1),)), Move(0, (out(0, 4),), (SLOT,))]
    assert forward_input(moves, range(4), range(4)) == [
        moves[0],
        Move(0, (inp(0),), (out(0),)),
        Move(0, (inp(2, 2),), (out(2, 2),)),
        moves[1],
    ]


def test_what_nobody_writes_is_copied_at_the_end() -> None:
    received = Move(1, (SLOT,), (out(2),))
    assert forward_input([received], range(6), range(6), frozenset({4})) == [
        received,
        Move(0, (inp(0, 2),), (out(0, 2),)),
        Move(0, (inp(3),), (out(3),)),
        Move(0, (inp(5),), (out(5),)),
    ]


def test_the_input_stands_only_where_the_rank_has_one() -> None:
    received = Move(1, (SLOT,), (out(0),))
    send = Move(0, (out(0, 3),), (SLOT,))
    # The input is chunk 1, the output all; chunk 2 is nobody's: the verifier will say so.
    assert forward_input([received, send], range(1, 2), range(4)) == [
        received,
        Move(0, (inp(1),), (out(1),)),
        send,
    ]


def test_only_what_the_output_has_is_copied_at_the_end() -> None:
    assert forward_input([], range(4), range(1, 3)) == [Move(0, (inp(1, 2),), (out(1, 2),))]
    assert forward_input([], range(4), range(0)) == []
