from pycoll.passes.fuse import drop_dead_stores, fuse, split
from pycoll.passes.moves import Location, Move, Where

X = Location(Where.OUT, 0, 0, 0, 1)
Y = Location(Where.OUT, 0, 1, 1, 1)
IN = Location(Where.IN, 0, 0, 0, 1)
SCRATCH = Location(Where.SCRATCH, 0, 0, 0, 1)


def slot(peer: int) -> Location:
    return Location(Where.SLOT, peer, 0, 0, 1)


def test_a_send_joins_the_move_that_makes_the_value() -> None:
    fold = Move(0, (IN, slot(1)), (X,), True)
    send, again = Move(0, (X,), (slot(2),)), Move(0, (X,), (slot(3),))
    assert fuse([fold, send, again]) == [Move(0, fold.sources, (X, slot(2), slot(3)), True)]


def test_sends_of_one_value_share_the_read() -> None:
    assert fuse([Move(0, (IN,), (slot(p),)) for p in (1, 2, 3)]) == [
        Move(0, (IN,), (slot(1), slot(2), slot(3)))
    ]


def test_what_must_not_fuse_does_not() -> None:
    make, send = Move(0, (slot(1),), (X,)), Move(0, (X,), (slot(2),))
    for moves in (
        [make, Move(0, (Y,), (slot(2),))],  # another value
        [make, Move(0, (slot(3),), (Y,)), send],  # not next to each other
        [make, Move(1, (X,), (slot(2),))],  # another channel
        [send, send],  # one edge twice: one slot each
        [make, Move(1, (slot(3),), (X,)), send],  # the value changes in between
        [make, Move(0, (X, slot(3)), (Y,))],  # a fold is no send
    ):
        assert fuse(moves) == moves


def test_other_channels_do_not_stand_between() -> None:
    make, other = Move(0, (slot(1),), (X,)), Move(1, (slot(3),), (Y,))
    assert fuse([make, other, Move(0, (X,), (slot(2),))]) == [
        Move(0, (slot(1),), (X, slot(2))),
        other,
    ]


def test_a_store_that_is_overwritten_unread_is_dropped() -> None:
    partial = Move(0, (IN, slot(1)), (X, slot(2)))
    final = Move(0, (slot(1),), (X,))
    assert drop_dead_stores([partial, final], range(2), 2) == [
        Move(0, (IN, slot(1)), (slot(2),)),
        final,
    ]
    assert drop_dead_stores([partial], range(2), 2) == [partial]
    read = Move(0, (X,), (slot(3),))
    assert drop_dead_stores([partial, read, final], range(2), 2) == [partial, read, final]


def test_a_store_stays_where_further_sends_read_it() -> None:
    partial = Move(0, (slot(1),), (X, slot(2), slot(3), slot(4)))
    moves = [partial, Move(0, (slot(1),), (X,))]
    assert drop_dead_stores(moves, range(1), 2) == moves


def test_a_message_nobody_reads_is_consumed_and_a_copy_nobody_reads_goes() -> None:
    consume = Move(0, (slot(1),), (SCRATCH,))
    assert drop_dead_stores([consume, Move(0, (IN,), (SCRATCH,))], range(1), 2) == [consume]


def test_split_keeps_to_the_limit() -> None:
    assert split([Move(0, (slot(1),), (X, slot(2), slot(3), slot(4), slot(5)), True)], 2) == [
        Move(0, (slot(1),), (X, slot(2)), True),
        Move(0, (X,), (slot(3), slot(4))),
        Move(0, (X,), (slot(5),)),
    ]
    assert split([Move(0, (IN,), (slot(1), slot(2), slot(3)))], 2) == [
        Move(0, (IN,), (slot(1), slot(2))),
        Move(0, (IN,), (slot(3),)),
    ]


def test_a_store_to_what_the_output_does_not_have_is_dead() -> None:
    fold = Move(0, (IN, slot(1)), (X, slot(2)))
    assert drop_dead_stores([fold], range(1, 2), 2) == [Move(0, fold.sources, (slot(2),))]
