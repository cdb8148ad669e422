"""A communicator whose calls GPUs make shrinks: the kernels of those who live go on."""

from __future__ import annotations

import os
import signal

import gpus
import numpy as np
import pytest
from test_device_faults import repeat
from test_device_grow import total

import pycoll
from pycoll import BrokenError, PeerLostError

pytestmark = gpus.MARKS


@pytest.mark.parametrize(("size", "victims"), [(3, {1}), (3, {0}), (4, {0, 2}), (2, {1})])
def test_those_who_live_go_on(size: int, victims: set[int]) -> None:
    def rank() -> tuple[list[float], list[float], list[float]]:
        comm = pycoll.init(timeout=60)
        kept = comm.empty(3, device="cuda")
        total(comm)
        comm.barrier()
        if comm.rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        x = gpus.of(np.ones(1000, "f4"))
        with pytest.raises((PeerLostError, BrokenError)):
            repeat(comm, x)
        with comm.shrink() as left:
            found = total(left)
            assert left.allreduce(np.ones(2)).tolist() == [float(left.size)] * 2
            del kept
            comm.close()
            again = total(left)  # what the broken one held is not what this one uses
            with left.dup() as other:
                return found, again, total(other)

    found = gpus.ranks(size, rank, check=False)
    left = size - len(victims)
    want = [float(i * sum(range(1, left + 1))) for i in range(3)]
    for number, outcome in enumerate(found):
        if number in victims:
            assert isinstance(outcome, PeerLostError)
        else:
            assert outcome == (want, want, want)
