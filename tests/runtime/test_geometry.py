"""Which blocks lie where, for every collective, rank and root."""

from __future__ import annotations

import pytest

from pycoll.runtime.plan.geometry import Extent, geometry
from pycoll.schedule import COLLECTIVES

NONE, ONE = Extent(0, 0), Extent(0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_extents_by_the_book(size: int) -> None:
    every = Extent(0, size)
    for root in range(size):
        for rank in range(size):
            own, is_root = Extent(rank, 1), rank == root
            if size == 1:
                own = ONE
            want = {
                "allreduce": (ONE, ONE),
                "broadcast": (ONE if is_root else NONE, ONE),
                "reduce": (ONE, ONE if is_root else NONE),
                "allgather": (own, every),
                "reduce_scatter": (every, own),
                "alltoall": (every, every),
                "gather": (own, every if is_root else NONE),
                "scatter": (every if is_root else NONE, own),
            }
            for name, collective in COLLECTIVES.items():
                at = root if collective.rooted else 0
                assert geometry(collective, rank, size, at)[1:] == want[name], (name, rank, root)


def test_sums_over_a_table() -> None:
    table = (3, 0, 5, 7)
    assert Extent(1, 2).begin(table) == 3
    assert Extent(1, 2).total(table) == 5
    assert Extent(0, 0).total(table) == 0
