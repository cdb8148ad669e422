"""A rank of rdma_allreduce.py: both libraries' all-reduces in turns, and the packets they take.

    rdma_allreduce_rank.py FILE SECONDS IN_PLACE SIZE...

Runs under mpi4py. For each size, in bytes, rank 0 appends a line of JSON for each library to FILE
as soon as it is measured, after a first line about all. SECONDS is what a size may take. A call
that fails ends the program, and the sizes before are there.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

import pycoll
from pycoll.benchmark import metadata

BLOCK_SECONDS = 0.004  #: at least, of calls one behind the other
REPEATS = 25  #: at most, of each library
COUNT_SECONDS = 0.2  #: of calls that are counted, about
MOST_COUNTED = 50  #: calls
#: After which nothing is on its way any more: what was, belongs to the calls before.
QUIET_SECONDS = 0.05
#: As the guest's first process sees them: the other network namespaces' sysfs has none.
COUNTERS = "/proc/1/root/sys/class/infiniband/{}/ports/1/hw_counters/{}"
#: What is recorded of a NIC → its counter. Packets are all that it sent, with acknowledgements.
COUNTED = {
    "packets": "sent_pkts",
    "duplicates": "duplicate_request",  # requests that came twice
    "resends": "completer_retry_err",  # times that it began to send again
    "gaps": "out_of_seq_request",  # requests that came before others
}

Call = Callable[[], object]


def counts(device: str) -> dict[str, int]:
    """Return what a NIC has counted until now."""
    return {
        name: int(Path(COUNTERS.format(device, counter)).read_text())
        for name, counter in COUNTED.items()
    }


def block(call: Call, calls: int) -> float:
    """Return the seconds of a call, of so many one behind the other."""
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


class Library:
    """One library at one size, and what was measured of it on this rank."""

    def __init__(self, name: str, call: Call) -> None:
        self.name, self.call = name, call
        self.times: list[float] = []
        self.calls = 0
        self.counts: dict[str, int] = {}

    def count(self, world: Any, device: str, calls: int) -> None:
        """Count what so many calls cost, and nothing before or behind them."""
        world.Barrier()
        time.sleep(QUIET_SECONDS)  # nobody calls before all have read, or what follows would count
        before = counts(device)
        time.sleep(QUIET_SECONDS)
        block(self.call, calls)
        time.sleep(QUIET_SECONDS)
        after = counts(device)
        self.calls = calls
        self.counts = {name: after[name] - before[name] for name in COUNTED}


def measure(world: Any, libraries: list[Library], device: str, seconds: float) -> None:
    """Let the libraries take turns; the ranks agree on how many calls."""
    calls = {}
    for library in libraries:
        library.call()  # connects
        world.Barrier()
        slowest = world.allreduce(block(library.call, 2), MPI.MAX)
        calls[library.name] = max(1, round(BLOCK_SECONDS / slowest))
        library.count(world, device, min(MOST_COUNTED, max(2, round(COUNT_SECONDS / slowest))))
    world.Barrier()
    spent = world.allreduce(
        sum(block(one.call, calls[one.name]) * calls[one.name] for one in libraries), MPI.MAX
    )
    repeats = max(3, min(REPEATS, round(seconds / spent)))
    gc.disable()
    for turn in range(repeats):
        for library in (libraries[turn % 2], libraries[1 - turn % 2]):
            world.Barrier()
            library.times.append(block(library.call, calls[library.name]))
    gc.enable()


def main() -> None:
    """Measure each size, and write what was found."""
    world = MPI.COMM_WORLD
    file, seconds, in_place, *sizes = sys.argv[1:]
    device = os.environ["PYCOLL_RAILS"]  # the only one of this host, and of both libraries
    comm = pycoll.from_mpi(world)
    versions = {"mpi4py": mpi4py.__version__, "mpi": MPI.Get_library_version().split(",")[0]}
    note(world, file, metadata.collect("mpi4py", world.size, versions, comm.transport))
    random = np.random.default_rng(7)
    for nbytes in map(int, sizes):
        count = nbytes // 4
        # Small integers: the sum is exact in any order.
        parts = random.integers(-999, 1000, (world.size, count)).astype(np.float32)
        want = parts.sum(axis=0)
        x, out = parts[world.rank].copy(), np.full(count, np.nan, np.float32)
        algorithm = comm.plan("allreduce", x).algorithm
        libraries = calls_of(comm, world, x, out, bool(int(in_place)))
        wrong = {name: check(world, call, x, out, parts[world.rank], want)
                 for name, call in libraries.items()}  # fmt: skip
        x[:] = 0  # in place the sums would grow without end
        measured = [Library(name, call) for name, call in libraries.items()]
        measure(world, measured, device, float(seconds))
        for library in measured:
            row = {
                "library": library.name,
                "collective": "allreduce",
                "ranks": world.size,
                "dtype": "float32",
                "op": "sum",
                "nbytes": nbytes,
                "count": count,
                "algorithm": algorithm if library.name == "pycoll" else "-",
                "transport": comm.transport if library.name == "pycoll" else "ucx",
                "arrays": "numpy",
                "call": "call",
                "in_place": bool(int(in_place)),
                **told(world, library),
                "wrong": wrong[library.name],
            }
            note(world, file, row)
    comm.close()


def note(world: Any, file: str, what: dict[str, Any]) -> None:
    """Append a line, which is there whatever happens next."""
    if world.rank == 0:
        with open(file, "a") as lines:
            lines.write(json.dumps(what) + "\n")


def calls_of(
    comm: pycoll.Communicator, world: Any, x: np.ndarray, out: np.ndarray, in_place: bool
) -> dict[str, Call]:
    """Return each library's call."""
    if in_place:
        return {
            "pycoll": lambda: comm.allreduce(x),
            "mpi4py": lambda: world.Allreduce(MPI.IN_PLACE, x),
        }
    return {
        "pycoll": lambda: comm.allreduce(x, out),
        "mpi4py": lambda: world.Allreduce(x, out),
    }


def check(
    world: Any, call: Call, x: np.ndarray, out: np.ndarray, mine: np.ndarray, want: np.ndarray
) -> int:
    """Make one call; return how many elements are wrong, on all ranks."""
    x[:], out[:] = mine, np.nan
    call()
    found = x if np.isnan(out).all() else out
    wrong: int = world.allreduce(int(np.count_nonzero(found != want)))
    x[:] = mine
    return wrong


def told(world: Any, library: Library) -> dict[str, Any]:
    """Return the times of the slowest rank, and what a rank's NIC counted for each call."""
    times = [max(each) for each in zip(*world.allgather(library.times), strict=True)]
    times = sorted(1e6 * seconds for seconds in times)
    counted = {name: world.allreduce(n) for name, n in library.counts.items()}
    each = library.calls * world.size
    return {
        "time_us": {
            "min": round(times[0], 4),
            "median": round(statistics.median(times), 4),
            "p99": round(times[min(len(times) - 1, round(0.99 * len(times)))], 4),
        },
        "repeats": len(times),
        "calls": library.calls,
        "per_call": {name: round(n / each, 3) for name, n in counted.items()},
    }


if __name__ == "__main__":
    main()
