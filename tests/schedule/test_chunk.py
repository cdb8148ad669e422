import pytest

from pycoll.errors import ScheduleError
from pycoll.schedule.chunk import Buffer, ChunkArray, Chunks


def test_an_index_wraps_round() -> None:
    x = ChunkArray(Buffer.OUTPUT, 4)
    assert x[-1] == x[3] == x[7] == Chunks(Buffer.OUTPUT, 3, 3, 1)


def test_a_range_covers_its_chunks() -> None:
    x = ChunkArray(Buffer.INPUT, 4)
    assert x[1:3] == Chunks(Buffer.INPUT, 1, 1, 2)
    assert x[:] == Chunks(Buffer.INPUT, 0, 0, 4)
    assert len(x) == 4


@pytest.mark.parametrize("index", [slice(2, 5), slice(-1, 2), slice(2, 2), slice(3, 1)])
def test_a_range_does_not_wrap(index: slice) -> None:
    with pytest.raises(ScheduleError, match=r"^out\[.*want a range that is not empty, within 0:4$"):
        ChunkArray(Buffer.OUTPUT, 4)[index]


def test_a_range_has_no_step() -> None:
    with pytest.raises(ScheduleError, match=r"^out\[0:4:2\]: a range has step 1$"):
        ChunkArray(Buffer.OUTPUT, 4)[::2]


def test_scratch_holds_a_chunk_not_yet_known() -> None:
    scratch = ChunkArray(Buffer.SCRATCH, 0)
    assert scratch[5] == Chunks(Buffer.SCRATCH, 5, -1, 1)
    assert scratch[1:3] == Chunks(Buffer.SCRATCH, 1, -1, 2)


def test_scratch_neither_wraps_nor_ends() -> None:
    scratch = ChunkArray(Buffer.SCRATCH, 0)
    with pytest.raises(ScheduleError, match=r"^scratch\[-1\]: places of scratch are counted from"):
        scratch[-1]
    with pytest.raises(ScheduleError, match=r"^scratch\[0:0\]: .*both ends given"):
        scratch[:]


def test_around_wraps_as_one_or_two_ranges() -> None:
    x = ChunkArray(Buffer.OUTPUT, 5)
    assert x.around(1, 3) == (x[1:4],)
    assert x.around(8, 2) == (x[3:5],)
    assert x.around(3, 4) == (x[3:5], x[0:2])
    assert x.around(-1, 5) == (x[4:5], x[0:4])


@pytest.mark.parametrize("n", [0, 6])
def test_around_covers_a_chunk_once_at_most(n: int) -> None:
    with pytest.raises(ScheduleError, match=rf"^out\.around\(2, {n}\): want 1 to 5 chunks$"):
        ChunkArray(Buffer.OUTPUT, 5).around(2, n)


def test_scratch_has_no_end_to_wrap_round() -> None:
    with pytest.raises(ScheduleError, match=r"^scratch\.around\(0, 1\): scratch has no end"):
        ChunkArray(Buffer.SCRATCH, 0).around(0, 1)


def test_a_loop_over_a_buffer_ends() -> None:
    assert list(ChunkArray(Buffer.OUTPUT, 3)) == [Chunks(Buffer.OUTPUT, i, i, 1) for i in range(3)]


def test_a_loop_over_scratch_has_no_end() -> None:
    with pytest.raises(ScheduleError, match=r"^scratch has no end: name the places"):
        iter(ChunkArray(Buffer.SCRATCH, 0))


def test_no_other_attribute_stands_for_one() -> None:
    with pytest.raises(AttributeError, match=r"'ChunkArray' object has no attribute 'shape'"):
        _ = ChunkArray(Buffer.OUTPUT, 3).shape
