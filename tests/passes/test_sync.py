from pycoll.passes.moves import Location, Move, Where
from pycoll.passes.sync import CountKind, End, Signal, Wait, release, sync

X = Location(Where.OUT, 0, 0, 0, 1)
IN = Location(Where.IN, 0, 0, 0, 1)


def slot(peer: int) -> Location:
    return Location(Where.SLOT, peer, 0, 0, 1)


def data(sending: bool, peer: int, channel: int = 0) -> End:
    return End(CountKind.DATA, sending, peer, channel)


def test_waits_stand_before_and_signals_behind_data_first() -> None:
    move = Move(0, (slot(1), IN, slot(2)), (X, slot(3)))
    assert sync([move], 0, True) == {
        0: [
            Wait(data(True, 3)),
            Wait(data(False, 1)),
            Wait(data(False, 2)),
            move,
            Signal(data(True, 3)),
            Signal(data(False, 1)),
            Signal(data(False, 2)),
        ]
    }


def test_a_value_that_crosses_channels_gets_a_local_edge() -> None:
    up, down = Move(0, (IN,), (slot(1),)), Move(1, (slot(1),), (X,))
    channels = sync([up, down], 5, True)
    # In place, up reads what down writes.
    assert channels[0][-1] == Signal(End(CountKind.LOCAL, True, 5, 0, 1))
    assert channels[1][0] == Wait(End(CountKind.LOCAL, False, 5, 0, 1))


def test_an_input_that_is_never_the_output_is_not_waited_for() -> None:
    up, down = Move(0, (IN,), (slot(1),)), Move(1, (slot(1),), (X,))
    ends = [
        item.end
        for items in sync([up, down], 5, False).values()
        for item in items
        if item not in (up, down)
    ]
    assert {end.kind for end in ends} == {CountKind.DATA}


def test_release_says_done_and_hears_it_in_the_order_of_ranks() -> None:
    def done(sending: bool, peer: int) -> End:
        return End(CountKind.DONE, sending, peer, 0)

    assert release({5, 1}, {2, 0}) == [
        Signal(done(True, 1)),
        Signal(done(True, 5)),
        Wait(done(False, 0)),
        Wait(done(False, 2)),
    ]
    assert release((), ()) == []
