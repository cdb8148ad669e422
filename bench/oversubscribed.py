"""What happens when ranks outnumber cores: 4, 8 and 64 ranks, a busy neighbour, idle waiting.

All-reduce in every mix of these; four other collectives with 4 ranks.

Run: python bench/oversubscribed.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from launch import arguments, burning, mpis, write

QUIET = {
    4: ["--min", "1K", "--max", "16M", "--factor", "4"],
    8: ["--min", "1K", "--max", "16M", "--factor", "4"],
}
SMALL = ["--min", "4", "--max", "4"]
OTHERS = ("broadcast", "allgather", "reduce_scatter", "alltoall")
COARSE = ["--min", "1K", "--max", "4M", "--factor", "64"]


def main() -> None:
    parser = arguments(__doc__, "oversubscribed.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", default="7")
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle:
        idle()
        return
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    runs = [("allreduce", ranks, sizes, False) for ranks, sizes in QUIET.items()]
    runs += [("allreduce", *run) for run in ((8, SMALL, False), (8, SMALL, True))]
    runs += [("allreduce", 64, SMALL, False), *((name, 4, COARSE, False) for name in OTHERS)]
    for turn in range(options.rounds):
        for name, ranks, sizes, foreign in runs:
            for mpi in mpis(options):
                # An MPI at 64 ranks on two cores is measured in minutes, and no claim needs it.
                against = [] if ranks == 64 else ["--against", "mpi4py"]
                more = [*sizes, *against, "--repeats", options.repeats]
                with burning(foreign):
                    result = mpi.bench(ranks, *more, collective=name)
                meta = meta or result["meta"]
                extra = {"mpi": mpi.name, "round": turn, "foreign": foreign}
                rows += [row | extra for row in result["rows"]]
    shares = [json.loads(mpi.run(8, __file__, "--idle")) for mpi in mpis(options)]
    write(options.output, meta, rows, idle=shares)


def idle() -> None:
    """Rank 0 comes two seconds late, and looks what the waiting ranks do in the second one."""
    import numpy as np

    import pycoll

    with pycoll.init() as comm:
        pids = np.zeros(comm.size, np.int64)
        pids[comm.rank] = os.getpid()
        comm.allreduce(pids)
        if comm.rank == 0:
            waiting = [int(pid) for pid in pids[1:]]
            time.sleep(1)
            before, start = [cpu_seconds(pid) for pid in waiting], time.perf_counter()
            time.sleep(1)
            elapsed = time.perf_counter() - start
            used = [cpu_seconds(pid) - b for pid, b in zip(waiting, before, strict=True)]
            shares = [round(u / elapsed, 5) for u in used]
            json.dump({"launcher": comm.launcher, "ranks": comm.size, "share": shares}, sys.stdout)
        comm.allreduce(np.ones(1, np.float32))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


if __name__ == "__main__":
    main()
