"""What a parent of ranks imports for them: enough for their first calls."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import pycoll


def imported() -> set[str]:
    """Be a rank; return the modules of pycoll that its first calls had to import."""
    before = set(sys.modules)
    with pycoll.init() as comm, comm.split(0) as half:
        comm.barrier()
        half.allreduce(np.ones(4))
        comm.allgather_object(comm.rank)
    return {name for name in set(sys.modules) - before if name.startswith("pycoll.")}


def fresh() -> list[set[str]]:
    """Be a parent of ranks that has imported little itself."""
    return pycoll.spawn(imported, 2, timeout=60)


@pytest.mark.native
def test_the_first_calls_of_a_rank_import_nothing_of_pycoll() -> None:
    (found,) = pycoll.spawn(fresh, 1, start="spawn", timeout=60)
    assert found == [set(), set()]
