from __future__ import annotations

import pytest

from pycoll.errors import ScheduleError
from pycoll.schedule import COLLECTIVES, Collective, allreduce, alltoall, broadcast, scatter

#: of rank 1 of 3, at 2 chunks a block (6 for the whole message; alltoall: 3)
EXTENTS = {
    "allreduce": ((0, 6), (0, 6)),
    "broadcast": ((0, 0), (0, 6)),
    "reduce": ((0, 6), (0, 0)),
    "allgather": ((2, 4), (0, 6)),
    "reduce_scatter": ((0, 6), (2, 4)),
    "alltoall": ((0, 3), (0, 3)),
    "gather": ((2, 4), (0, 0)),
    "scatter": ((0, 0), (2, 4)),
}


def test_the_collectives_are_numbered_in_a_fixed_order() -> None:
    assert list(COLLECTIVES) == list(EXTENTS)
    assert all(c.name == name for name, c in COLLECTIVES.items())
    assert [c.name for c in COLLECTIVES.values() if c.rooted] == [
        "broadcast", "reduce", "gather", "scatter",
    ]  # fmt: skip
    assert {c.name for c in COLLECTIVES.values() if c.reduces} == {
        "allreduce", "reduce", "reduce_scatter",
    }  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_extents_of_a_rank_that_is_not_the_root(name: str) -> None:
    c = COLLECTIVES[name]
    nchunks = 3 if c.equal_blocks else 6
    ends = [c.in_extent(1, 3, nchunks), c.out_extent(1, 3, nchunks)]
    assert tuple((r.start, r.stop) for r in ends) == EXTENTS[name]


def test_the_root_holds_what_it_gives_and_gets() -> None:
    assert broadcast.in_extent(0, 3, 6) == broadcast.out_extent(0, 3, 6) == range(6)
    assert scatter.in_extent(0, 3, 6) == range(6)
    assert scatter.out_extent(0, 3, 6) == range(2)


def test_allreduce_gathers_every_contribution_everywhere() -> None:
    assert allreduce.before(2, 0, 3) == {2}
    assert allreduce.after(2, 0, 3) == {0, 1, 2}
    assert allreduce.same_bits


def test_alltoall_promises_the_block_that_the_source_holds_for_this_rank() -> None:
    assert alltoall.after(2, 1, 3) == {1}
    assert alltoall.origin(2, 1, 3) == 2
    assert not alltoall.in_place


@pytest.mark.parametrize(
    ("name", "nchunks", "message"),
    [
        ("allgather", 4, "4 chunks, want a multiple of 3: allgather has a block for each rank"),
        ("alltoall", 6, "6 chunks, want 3: alltoall cuts no block"),
    ],
)
def test_chunks_cut_blocks_into_equal_parts(name: str, nchunks: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{message}"):
        COLLECTIVES[name].check_chunks(nchunks, 3)


def test_an_extent_has_no_gap() -> None:
    odd = Collective("odd", lambda r, b, n: None if b == 1 else frozenset((r,)), allreduce.after)
    gaps = Collective("gaps", odd.before, odd.after, "rank")
    with pytest.raises(ScheduleError, match=r"rank 0 has blocks \[0, 2\], want blocks side by"):
        gaps.in_blocks(0, 3)
