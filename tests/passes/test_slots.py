from pycoll.passes.fold import Folder
from pycoll.passes.moves import Location, Move, Where
from pycoll.passes.slots import slots
from pycoll.schedule import ScheduleBuilder


def test_every_kind_of_step_becomes_its_move() -> None:
    b = ScheduleBuilder(3, 0)
    x, s = b.output[1], b.scratch[0]
    b.send(x, to=1)
    b.recv(s, frm=2)
    b.recv_reduce(x, frm=[1, 0, 2])
    b.reduce(s, into=x)
    b.copy(x, s)
    here, scratch = Location(Where.OUT, 0, 1, 1, 1), Location(Where.SCRATCH, 0, 0, -1, 1)

    def slot(peer: int, chunk: int = 1) -> Location:
        return Location(Where.SLOT, peer, 0, chunk, 1)

    assert slots(b.steps, 0, frozenset({2, 3}), Folder(8, 1)) == [
        Move(0, (here,), (slot(1),)),
        Move(0, (slot(2, -1),), (scratch,)),
        Move(0, (slot(1), here, slot(2)), (here,), True),
        Move(0, (here, scratch), (here,), True),
        Move(0, (here,), (scratch,)),
    ]
