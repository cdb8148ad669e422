from pycoll.passes.fold import Folder
from pycoll.passes.moves import Location, Move, Where

OUT = Location(Where.OUT, 0, 2, 2, 1)


def slot(peer: int) -> Location:
    return Location(Where.SLOT, peer, 0, 2, 1)


def test_a_short_fold_is_one_move() -> None:
    folder = Folder(4, 0)
    order = (slot(1), OUT, slot(2))
    assert folder.fold(0, order, OUT, True) == [Move(0, order, (OUT,), True)]
    assert folder.nscratch == 0


def test_a_long_fold_passes_through_hidden_scratch_in_order() -> None:
    folder = Folder(3, 5)
    order = tuple(slot(p) for p in range(6))
    hidden = Location(Where.SCRATCH, 0, 5, 2, 1)
    assert folder.fold(1, order, OUT, True) == [
        Move(1, order[:3], (hidden,)),
        Move(1, (hidden, *order[3:5]), (hidden,)),
        Move(1, (hidden, order[5]), (OUT,), True),
    ]
    folder.fold(1, order, OUT, False)
    assert folder.nscratch == 6  # one area serves every fold of a channel
    folder.fold(0, order, OUT, False)
    assert folder.nscratch == 7  # and no two channels share one
