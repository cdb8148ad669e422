"""Between hosts over TCP, what a call only copies is received where it belongs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pycoll
from pycoll.bootstrap import job
from pycoll.runtime.native import verbs

sys.path.append(str(Path(__file__).parents[1] / "faults"))

import walk

pytestmark = pytest.mark.native


def landed(comm):
    """Return how many messages this rank has received without a slot."""
    return verbs.comm_net_state(comm._engine.comm).landed


def repeat(call):
    """Call until it raises: the slots take some calls that nobody receives."""
    while True:
        call()


@pytest.mark.parametrize("nbytes", [4092, 4096, 40_000, 300_004, 3_000_000])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_messages_that_are_copied_come_into_the_array(size, nbytes):
    def rank():
        mine = job.current().rank
        with walk.apart("tcp", mine), pycoll.init(timeout=30) as comm:
            found = []
            for turn in range(3):
                want = np.random.default_rng(turn).random(nbytes // 4, np.float32)
                x = want.copy() if mine == 0 else np.zeros_like(want)
                comm.broadcast(x, algorithm="chain")
                found.append((x == want).all())
                blocks = np.zeros((size, want.size), np.float32)
                comm.allgather(want + mine, blocks, algorithm="ring")
                found += [(blocks[i] == want + np.float32(i)).all() for i in range(size)]
                total = np.full_like(want, mine + 1)
                comm.allreduce(total)
                found.append((total == sum(range(1, size + 1))).all())
            return all(found), landed(comm)

    for right, messages in pycoll.spawn(rank, size, timeout=60):
        assert right
        assert (messages > 0) == (nbytes >= 4096)


@pytest.mark.parametrize("late", [0, 1])
def test_who_gives_up_a_call_has_its_array_to_itself(late):
    """What comes afterwards is written nowhere, in good order or by the tail of a message."""

    def rank():
        mine = job.current().rank
        with walk.apart("tcp", mine):
            comm = pycoll.init(timeout=30)
        x = np.full(1 << 20, mine, np.float32)
        comm.broadcast(x.copy(), root=late)  # connected
        if mine == late:
            time.sleep(1.5)
            with pytest.raises(pycoll.PycollError):
                repeat(lambda: comm.broadcast(np.full_like(x, 9), root=late, timeout=2))
        else:
            with pytest.raises(pycoll.CollectiveTimeout):
                comm.broadcast(x, root=late, timeout=0.5)
            x[:] = 7
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert (x == 7).all()
                time.sleep(0.01)
        comm.close()
        return True

    assert pycoll.spawn(rank, 2, timeout=60) == [True, True]
