"""How long until a rank can call, and how much memory do the slots take?

Run: python bench/startup.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from launch import arguments, environment, mpis, write

IMPORT = "import time; t = time.perf_counter(); import pycoll; print(time.perf_counter() - t)"


def main() -> None:
    parser = arguments(__doc__, "startup.json")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", choices=("init", "memory"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        (init if options.rank == "init" else memory)()
        return
    rows: list[dict[str, Any]] = []
    command = [sys.executable, "-c", IMPORT]
    for _ in range(options.repeats):
        done = subprocess.run(command, env=environment(), capture_output=True, check=True)
        rows.append({"what": "import", "ms": round(float(done.stdout) * 1e3, 3)})
        for mpi in mpis(options):
            rows.append(json.loads(mpi.run(2, __file__, "--rank", "init")) | {"mpi": mpi.name})
    for mpi in mpis(options):
        rows.append(json.loads(mpi.run(8, __file__, "--rank", "memory")) | {"mpi": mpi.name})
    from pycoll.benchmark import metadata

    meta = metadata.collect("mpirun", 2, {})
    medians = {
        what: statistics.median(row["ms"] for row in rows if row["what"] == what)
        for what in ("import", "init")
    }
    write(options.output, meta, rows, median_ms=medians)
    print(medians, rows[-2:])


def init() -> None:
    """Time pycoll.init() after MPI_Init; the slowest rank counts."""
    from mpi4py import MPI

    import pycoll

    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    comm = pycoll.init()
    took = MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX)
    if comm.rank == 0:
        print(json.dumps({"what": "init", "ms": round(took * 1e3, 3)}))
    comm.close()


def memory() -> None:
    """After every algorithm and size: what this rank's share of all shared memory is."""
    import numpy as np

    import pycoll
    from pycoll.algorithms import names

    with pycoll.init() as comm:
        x = np.ones((16 << 20) // 4, np.float32)
        for name in (None, *names("allreduce")):
            for count in (1, 256, 1 << 14, 1 << 18, x.size):
                comm.allreduce(x[:count], op="max", algorithm=name)
        share = np.array([shared_bytes()], np.float64)
        comm.allreduce(share, op="max")
        if comm.rank == 0:
            mib = round(float(share[0]) / (1 << 20), 3)
            print(json.dumps({"what": "slots", "ranks": comm.size, "mib_per_rank": mib}))


def shared_bytes() -> int:
    """Return this rank's share of pycoll's shared memory: every page split over its users."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(":")[0]:  # the head of a mapping: addresses, ..., what it maps
            ours = "/memfd:pycoll" in line
        elif ours and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


if __name__ == "__main__":
    main()
