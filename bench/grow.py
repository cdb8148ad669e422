"""How long until a process that comes into a running job can call, beyond its own start?

A spare that waits already: `grow` on the slowest of the ranks. A process that is started as the
ranks call `grow`: from its start to the end of its `join`, and the same of a process that calls
`init` alone; the difference is what growing takes beyond the start, the imports and an engine.

Run: python bench/grow.py
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from launch import arguments, environment, write

SIZES = (1, 2, 4, 8)


def main() -> None:
    parser = arguments(__doc__, "grow.json")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--join", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.join:
        come(options.join)
        return
    import pycoll
    from pycoll.benchmark import metadata

    rows: list[dict[str, Any]] = []
    for _ in range(options.repeats):
        rows.append({"what": "init alone", "ranks": 1, "ms": milliseconds("alone")})
    for size in SIZES:
        rows += pycoll.spawn(grow, size, options.repeats, timeout=600)[0]
    meta = metadata.collect("pycoll.spawn", max(SIZES), {})
    medians = {
        f"{what}, {size}": statistics.median(found)
        for what in ("init alone", "a spare waits", "a process starts")
        for size in SIZES
        if (found := [row["ms"] for row in rows if (row["what"], row["ranks"]) == (what, size)])
    }
    alone = medians["init alone, 1"]
    beyond = {size: round(medians[f"a process starts, {size}"] - alone, 3) for size in SIZES}
    write(options.output, meta, rows, median_ms=medians, beyond_the_start_ms=beyond)
    print(medians, beyond)


def grow(repeats: int) -> list[dict[str, Any]]:
    """Be a rank: grow by one again and again; on rank 0 the times."""
    import numpy as np

    import pycoll

    comm = pycoll.init(timeout=60)
    rows: list[dict[str, Any]] = []
    for repeat in range(2 * repeats):
        spare = repeat % 2 == 0
        process, address = None, ""
        if comm.rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as held:
                address = f"127.0.0.1:{held.getsockname()[1]}"
            if spare:
                process = start(address)
                assert process.stdout is not None
                process.stdout.readline()  # it is about to wait
                time.sleep(0.5)  # and does
        address = comm.broadcast_object(address)
        comm.barrier()
        began = time.perf_counter()
        if comm.rank == 0 and not spare:
            process = start(address)
        larger = comm.grow(1, address)
        took = np.array([time.perf_counter() - began])
        larger.close()
        if process and not spare:
            took[0] = told(process)
        elif process:
            told(process)
        comm.allreduce(took, op="max") if spare else comm.broadcast(took)
        what = "a spare waits" if spare else "a process starts"
        rows.append({"what": what, "ranks": comm.size, "ms": round(float(took[0]) * 1e3, 3)})
    comm.close()
    return rows


def start(address: str) -> subprocess.Popen[str]:
    """Start a newcomer; it prints a line when it begins to wait, then when it began and ended."""
    return subprocess.Popen(
        [sys.executable, __file__, "--join", f"{address} {time.time()}"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> float:
    """Return the seconds from a newcomer's start to where it could call."""
    out, _ = process.communicate(timeout=60)
    return float(json.loads(out.splitlines()[-1]))


def milliseconds(address: str) -> float:
    return round(told(start(address)) * 1e3, 3)


def come(what: str) -> None:
    """Be a newcomer."""
    import pycoll

    address, began = what.split()
    print("0", flush=True)
    comm = pycoll.init() if address == "alone" else pycoll.join(address, timeout=60)
    took = time.time() - float(began)
    print(took, flush=True)
    comm.close()


if __name__ == "__main__":
    main()
