"""A rank of fabric.py: all-reduces and ping-pongs in turns, and what the kernel did for each.

    fabric_rank.py FILE EVENTS SECONDS CALLS SIZE...

Runs under mpi4py. Rank 0 appends a line of JSON for each library and size to FILE, after a first
line about all. EVENTS is what syscalls.events returns, as JSON; SECONDS is what a call and size may
take; CALLS are of allreduce, pingpong.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI
from tcp_counts_rank import Kernel, Library, measure, note

import pycoll
from pycoll.benchmark import metadata
from pycoll.runtime.net import providers


def pingpong(
    send: Callable[[np.ndarray, int], object],
    receive: Callable[[np.ndarray, int], object],
    out: np.ndarray,
    back: np.ndarray,
    rank: int,
) -> None:
    """Send an array to the neighbour, and receive one."""
    if rank % 2 == 0:
        send(out, rank + 1)
        receive(back, rank + 1)
    else:
        receive(back, rank - 1)
        send(out, rank - 1)


def reductions(comm: Any, world: Any, parts: np.ndarray) -> tuple[list[Library], np.ndarray]:
    """Return both libraries' all-reduce in place, and what each must find; inputs are set."""
    own, other = parts[world.rank].copy(), parts[world.rank].copy()
    return [
        Library("pycoll", partial(comm.allreduce, own), own, own),
        Library("mpi4py", partial(world.Allreduce, MPI.IN_PLACE, other), other, other),
    ], parts.sum(axis=0)  # exact in any order


def pingpongs(comm: Any, world: Any, parts: np.ndarray) -> tuple[list[Library], np.ndarray]:
    """Return both libraries' ping-pong, and what each must receive."""
    rank, out = world.rank, parts[world.rank].copy()
    own, other = np.zeros_like(out), np.zeros_like(out)
    return [
        Library("pycoll", partial(pingpong, comm.send, comm.recv, out, own, rank), out, own),
        Library("mpi4py", partial(pingpong, world.Send, world.Recv, out, other, rank), out, other),
    ], parts[rank ^ 1]


CALLS = {"allreduce": reductions, "pingpong": pingpongs}


def main() -> None:
    """Measure each call and size, and write what was found."""
    file, events, seconds, calls, *sizes = sys.argv[1:]
    kernel = Kernel(json.loads(events))
    world = MPI.COMM_WORLD
    comm = pycoll.from_mpi(world)
    versions = {"mpi4py": mpi4py.__version__, "mpi": MPI.Get_library_version().split(",")[0]}
    meta = metadata.collect("mpi4py", world.size, versions, comm.transport)
    found = providers.find(os.environ["PYCOLL_FABRIC"], providers.Place("", 0))
    provider = f"{found.name} of libfabric {found.library_version}"
    note(world, file, {**meta, "provider": provider})
    random = np.random.default_rng(7)
    for nbytes in map(int, sizes):
        parts = random.integers(-999, 1000, (world.size, nbytes // 4)).astype(np.float32)
        for call in calls.split(","):
            libraries, want = CALLS[call](comm, world, parts)
            wrong = {}
            for one in libraries:
                one.call()
                wrong[one.name] = world.allreduce(int((one.out != want).sum()))
                one.out[:] = 0  # in place the sums would grow without end
            chosen = comm.plan("allreduce", libraries[0].out).algorithm
            measure(world, libraries, kernel, float(seconds))
            for one in libraries:
                times = np.array(one.times)
                world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
                counts = world.allreduce(one.counts)
                per_call = {k: v / one.calls / world.size for k, v in sorted(counts.items()) if v}
                ours = one.name == "pycoll" and call == "allreduce"
                row = {"library": one.name, "call": call, "nbytes": nbytes, "ranks": world.size,
                       "algorithm": chosen if ours else None,
                       "time_us": {"median": statistics.median(times) * 1e6,
                                   "min": float(min(times)) * 1e6, "n": len(times)},
                       "per_call_and_rank": per_call, "wrong": wrong[one.name]}  # fmt: skip
                note(world, file, row)
    comm.close()


if __name__ == "__main__":
    main()
