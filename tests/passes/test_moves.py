from pycoll.passes.moves import Location, Move, Where, local, outgoing, remote, uniform
from pycoll.passes.sync import CountKind
from pycoll.program.isa import EdgeKind, Space
from pycoll.schedule import Buffer, Chunks


def test_the_numbers_are_those_of_the_instruction_set() -> None:
    assert {w.name: w.value for w in Where} == {s.name: s.value for s in Space}
    assert {kind.name: kind.value for kind in CountKind} == {k.name: k.value for k in EdgeKind}


def test_places_of_chunks() -> None:
    chunks = Chunks(Buffer.OUTPUT, 2, 2, 3)
    assert local(chunks) == Location(Where.OUT, 0, 2, 2, 3)
    assert remote(Where.SLOT, 7, chunks) == Location(Where.SLOT, 7, 0, 2, 3)
    assert remote(Where.PEER_OUT, 7, chunks) == Location(Where.PEER_OUT, 7, 2, 2, 3)


def test_memory_is_shared_by_in_and_out_only() -> None:
    assert set(Location(Where.IN, 0, 1, 1, 2).memory()) == {1, 2}
    assert set(Location(Where.OUT, 0, 1, 1, 2).memory()) == {1, 2}
    assert set(Location(Where.SCRATCH, 0, 1, 1, 2).memory()) == {-2, -3}
    assert set(Location(Where.SLOT, 4, 0, 1, 2).memory()) == set()


def test_what_leaves_the_rank() -> None:
    assert [w for w in Where if outgoing(Location(w, 1, 0, 0, 1))] == [Where.SLOT, Where.PEER_OUT]


def test_a_uniform_move_names_the_chunks_of_its_first_source() -> None:
    move = Move(0, (Location(Where.IN, 0, 3, 3, 2),), (Location(Where.OUT, 0, 0, 0, 2),))
    assert uniform(move).destinations == (Location(Where.OUT, 0, 0, 3, 2),)
    assert uniform(move).sources == move.sources
