"""A rank of tcp_counts.py: calls of a collective in turns, and what the kernel did for each.

    tcp_counts_rank.py FILE ADDRESSES EVENTS SECONDS COLLECTIVE ALGORITHMS SIZE...

Runs under mpi4py. Rank 0 appends a line of JSON for each library and size to FILE, after a first
line about all. ADDRESSES are those of all ranks, by commas, EVENTS what syscalls.events returns, as
JSON. SECONDS is what a size may take. ALGORITHMS, by commas, are pycoll's; "auto" is its choice.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI
from syscalls import Syscalls
from tcp_floor import PATTERNS, YIELDS, Floor

import pycoll
from pycoll.benchmark import metadata

BLOCK_SECONDS = 0.01  #: at least, of calls one behind the other
REPEATS = 31  #: at most, of each library


class Kernel:
    """What the kernel has done for this rank so far."""

    def __init__(self, events: dict[str, int]) -> None:
        self._syscalls = Syscalls(events)

    def read(self) -> Counter[str]:
        """Return the counts; packets are those of this network namespace."""
        found = Counter(self._syscalls.read())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found["voluntary_switches"] = usage.ru_nvcsw
        found["involuntary_switches"] = usage.ru_nivcsw
        found["cpu_ns"] = time.process_time_ns()
        lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
        names, values = (line for line in lines if line[0] == "Tcp:")
        tcp = dict(zip(names[1:], map(int, values[1:]), strict=True))
        found["segments_sent"], found["segments_resent"] = tcp["OutSegs"], tcp["RetransSegs"]
        return found


class Library:
    """One library, or one algorithm of it, at one size."""

    def __init__(
        self, name: str, call: Callable[[], object], array: np.ndarray, out: np.ndarray
    ) -> None:
        self.name, self.call, self.array, self.out = name, call, array, out
        self.times: list[float] = []
        self.calls = 0
        self.counts: Counter[str] = Counter()


def block(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call, of so many one behind the other."""
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


def measure(world: Any, libraries: list[Library], kernel: Kernel, seconds: float) -> None:
    """Let the libraries take turns; the ranks agree on how many calls."""
    calls, spent = {}, 0.0
    for one in libraries:
        world.Barrier()
        slowest = world.allreduce(block(one.call, 10), MPI.MAX)
        calls[one.name] = max(2, round(BLOCK_SECONDS / slowest))
        spent += slowest * calls[one.name]
    repeats = max(5, min(REPEATS, round(seconds / spent)))
    none = Counter[str]()
    gc.disable()
    for _ in range(3):
        before = kernel.read()
        none = kernel.read()
        none.subtract(before)  # what the reading itself takes
    for turn in range(repeats):
        for k in range(len(libraries)):
            one = libraries[(k + turn) % len(libraries)]
            n = calls[one.name]
            world.Barrier()
            before = kernel.read()
            one.times.append(block(one.call, n))
            after = kernel.read()
            one.calls += n
            after.subtract(before)
            after.subtract(none)
            one.counts.update(after)
    gc.enable()


def wanted(collective: str, parts: np.ndarray, rank: int) -> np.ndarray | None:
    """Return what a rank must have got of all ranks' arrays; None: nothing, or anything."""
    size, mine = len(parts), len(parts[0]) // len(parts)
    block = slice(rank * mine, (rank + 1) * mine)
    total = parts.sum(axis=0)  # exact in any order
    return {
        "allreduce": lambda: total,
        "broadcast": lambda: parts[0],
        "reduce": lambda: total if rank == 0 else None,
        "allgather": lambda: parts[:, :mine].ravel(),
        "gather": lambda: parts[:, :mine].ravel() if rank == 0 else None,
        "scatter": lambda: parts[0][block],
        "reduce_scatter": lambda: total[block],
        "alltoall": lambda: parts.reshape(size, size, -1)[:, rank].ravel(),
    }[collective]()


#: By collective: a call of pycoll's, given the arrays, and MPI's. `x` holds a message of the size,
#: or its part of one: the blocks of a gather and of an all-gather are parts of the whole.
CALLS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "allreduce": (
        lambda comm, x, out, **how: comm.allreduce(x, **how),
        lambda world, x, out: world.Allreduce(MPI.IN_PLACE, x),
    ),
    "broadcast": (
        lambda comm, x, out, **how: comm.broadcast(x, **how),
        lambda world, x, out: world.Bcast(x),
    ),
    "reduce": (
        lambda comm, x, out, **how: comm.reduce(x, out if comm.rank == 0 else None, **how),
        lambda world, x, out: world.Reduce(x, out),
    ),
    "allgather": (
        lambda comm, x, out, **how: comm.allgather(x[: len(x) // comm.size], out, **how),
        lambda world, x, out: world.Allgather(x[: len(x) // world.size], out),
    ),
    "gather": (
        lambda comm, x, out, **how: comm.gather(
            x[: len(x) // comm.size], out if comm.rank == 0 else None, **how
        ),
        lambda world, x, out: world.Gather(x[: len(x) // world.size], out),
    ),
    "scatter": (
        lambda comm, x, out, **how: comm.scatter(
            x if comm.rank == 0 else None, out[: len(x) // comm.size], **how
        ),
        lambda world, x, out: world.Scatter(x, out[: len(x) // world.size]),
    ),
    "reduce_scatter": (
        lambda comm, x, out, **how: comm.reduce_scatter(x, out[: len(x) // comm.size], **how),
        lambda world, x, out: world.Reduce_scatter_block(x, out[: len(x) // world.size]),
    ),
    "alltoall": (
        lambda comm, x, out, **how: comm.alltoall(x, out, **how),
        lambda world, x, out: world.Alltoall(x, out),
    ),
}


def libraries_of(
    comm: Any, world: Any, floor: Floor, collective: str, algorithms: list[str], count: int
) -> list[Library]:
    """Return every call there is at this size, each with arrays of its own."""

    def arrays() -> tuple[np.ndarray, np.ndarray]:
        x = np.zeros(count, np.float32)
        in_place = collective in ("allreduce", "broadcast")
        return x, x if in_place else np.zeros(count, np.float32)

    found = []
    ours, theirs = CALLS[collective]
    for name in algorithms:
        x, out = arrays()
        how = {} if name == "auto" else {"algorithm": name}
        found.append(Library(f"pycoll:{name}", partial(ours, comm, x, out, **how), x, out))
    x, out = arrays()
    found.append(Library("mpi4py", partial(theirs, world, x, out), x, out))
    if collective != "allreduce":
        return found
    for pattern, least in PATTERNS.items():
        for yields in YIELDS:
            x = np.zeros(count, np.float32)
            if count >= least * world.size:
                call = floor.call(pattern, x, yields)
                found.append(Library(f"floor:{pattern}:{yields}", call, x, x))
    return found


def main() -> None:
    """Measure each size, and write what was found."""
    file, addresses, events, seconds, collective, algorithms, *sizes = sys.argv[1:]
    kernel = Kernel(json.loads(events))
    world = MPI.COMM_WORLD
    comm = pycoll.from_mpi(world)
    floor = Floor(world, addresses.split(",")[world.rank])
    versions = {"mpi4py": mpi4py.__version__, "mpi": MPI.Get_library_version().split(",")[0]}
    meta = metadata.collect("mpi4py", world.size, versions, comm.transport)
    note(world, file, meta)
    random = np.random.default_rng(7)
    for nbytes in map(int, sizes):
        count = nbytes // 4
        parts = random.integers(-999, 1000, (world.size, count)).astype(np.float32)
        want = wanted(collective, parts, world.rank)
        libraries = libraries_of(comm, world, floor, collective, algorithms.split(","), count)
        wrong = {}
        for one in libraries:
            one.array[:] = parts[world.rank]
            one.call()
            bad = 0 if want is None else int((one.out[: len(want)] != want).sum())
            wrong[one.name] = world.allreduce(bad)
            one.array[:] = 0  # in place the sums would grow without end
        measure(world, libraries, kernel, float(seconds))
        for one in libraries:
            times = np.array(one.times)
            world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
            counts = world.allreduce(one.counts)
            per_call = {k: v / one.calls / world.size for k, v in sorted(counts.items()) if v}
            row = {"library": one.name, "nbytes": nbytes, "ranks": world.size,
                   "time_us": {"median": statistics.median(times) * 1e6,
                               "min": float(min(times)) * 1e6, "n": len(times)},
                   "per_call_and_rank": per_call, "wrong": wrong[one.name]}  # fmt: skip
            note(world, file, row)
    floor.close()
    comm.close()


def note(world: Any, file: str, row: dict[str, Any]) -> None:
    """Append a line to the file, by rank 0."""
    if world.rank == 0:
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
