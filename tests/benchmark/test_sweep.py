"""Which sizes a benchmark goes through."""

from __future__ import annotations

import pytest

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.sweep import Sweep


@pytest.mark.parametrize(
    ("sweep", "itemsize", "sizes"),
    [
        ({"min": 8, "max": 4096}, 64, [64, 128, 512, 2048]),
        ({"min": 8, "max": 256}, 4, [8, 32, 128]),
        ({"min": 8, "max": 64, "factor": 3}, 8, [8, 24]),
        ({"min": 10, "max": 100, "factor": 3}, 4, [8, 28, 88]),
        ({"min": 8, "max": 64, "step": 24}, 8, [8, 32, 56]),
    ],
)
def test_sizes_are_whole_elements(sweep, itemsize, sizes):
    found = Sweep(OPERATIONS["allreduce"], **sweep)
    assert list(found.sizes(itemsize, 3)) == sizes


def test_sizes_are_whole_elements_of_every_block():
    assert list(Sweep(OPERATIONS["alltoall"], min=8, max=4096).sizes(4, 16)) == [64, 128, 512, 2048]


def test_a_barrier_has_one_size():
    assert list(Sweep(OPERATIONS["barrier"]).sizes(4, 2)) == [0]
