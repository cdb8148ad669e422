"""A rank that makes every collective, in a line's size and in pieces' size, and checks them all.

With the argument `lend` it lends arrays instead.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import pycoll
from pycoll.runtime.native import verbs

SECONDS = 60  #: in which every path has come up, or never will
COUNTS = (3, 30_000)  #: elements for each rank: in the line; cut over the rails where there are two


def data(rank: int, count: int) -> np.ndarray:
    return np.arange(count) * (rank + 1) % 1009 + float(rank)


def collectives(comm: pycoll.Communicator) -> None:
    rank, size = comm.rank, comm.size
    for n in COUNTS:
        each = [data(r, n) for r in range(size)]
        rows = [data(r, n * size).reshape(size, n) for r in range(size)]
        total, root = np.sum(each, axis=0), size - 1
        assert np.array_equal(comm.allreduce(data(rank, n)), total)
        assert np.array_equal(comm.allgather(data(rank, n)), np.concatenate(each))
        got = comm.reduce_scatter(rows[rank].reshape(-1))
        assert np.array_equal(got, np.sum(rows, axis=0)[rank])
        got = comm.alltoall(rows[rank].reshape(-1))
        assert np.array_equal(got, np.concatenate([row[rank] for row in rows]))
        mine = data(rank, n) if rank == root else np.zeros(n)
        assert np.array_equal(comm.broadcast(mine, root=root), each[root])
        got = comm.reduce(data(rank, n), root=root)
        assert rank != root or np.array_equal(got, total)
        got = comm.gather(data(rank, n), root=root)
        assert rank != root or np.array_equal(got, np.concatenate(each))
        everything = rows[root].reshape(-1) if rank == root else None
        got = np.empty(n)
        comm.scatter(everything, got, root=root)
        assert np.array_equal(got, rows[root][rank])
        after, before = (rank + 1) % size, (rank - 1) % size
        (got,) = comm.exchange([(data(rank, n), after)], [(np.empty(n), before)])
        assert np.array_equal(got, each[before])
    comm.barrier()


def all_paths(comm: pycoll.Communicator) -> None:
    """Wait for the paths to all peers: a job begins when each peer has one, and may end before."""
    comm.alltoall(np.zeros(comm.size))
    end = time.monotonic() + SECONDS
    while (state := verbs.comm_net_state(comm._engine.comm)).live < state.connections:
        assert time.monotonic() < end, f"{state.live} of {state.connections} paths"
        time.sleep(0.01)
    comm.barrier()


def lend(comm: pycoll.Communicator) -> None:
    """Send two registered arrays, of which the second comes to lie where the first lay."""
    for value in (1.0, 2.0):
        array = comm.empty(2 << 20)  # 16 MiB
        if comm.rank == 0:
            array[:] = value
            comm.send(array, comm.size - 1)
        elif comm.rank == comm.size - 1:
            array[:] = 0
            comm.recv(array, 0)
            assert (array == value).all()
        del array
        comm.barrier()


with pycoll.init() as comm:
    assert comm.transport == "verbs"
    if sys.argv[1:] == ["lend"]:
        lend(comm)
    else:
        all_paths(comm)
        collectives(comm)
        half = comm.split(comm.rank % 2)
        collectives(half)
        half.close()
        assert comm.allgather_object(comm.rank) == list(range(comm.size))
    state = verbs.comm_net_state(comm._engine.comm)
    assert state.failures == 0
    print(f"done by {sum(1 for n in state.bytes if n)} rails")
