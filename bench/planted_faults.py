"""Does `pycoll trace` name what is wrong with a job, without being told?

Run: python bench/planted_faults.py [--jobs 6]     (as root: hosts are network namespaces)

8 ranks on 4 hosts, joined by TCP over wires of one rate. In each job chance picks a rank that comes
5 ms late to every second call, a host whose wire carries half as much as the others', and a rank
that asks for another algorithm in the last call, which breaks the communicator: then every rank
writes its record by itself. Besides, jobs with nothing planted but the last call's mismatch, whose
reports must name nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cluster import Hosts, lack
from launch import RESULTS, environment, write

from pycoll.benchmark import metadata

RANKS, HOSTS = 8, 4
RATE = 5e6  #: bytes per second of a wire: the processes that carry them are fast enough for it
LATE_SECONDS = 0.005
CALLS = 40
SECONDS = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "planted-faults.json")
    parser.add_argument("--rank", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        job(*options.rank)
        return
    if reason := lack():
        sys.exit(f"not measured: {reason}")
    chance = random.Random(options.seed)
    rows = []
    for number in range(options.jobs):
        clean = number % 3 == 2
        late, host, other = (
            chance.randrange(RANKS),
            chance.randrange(HOSTS),
            chance.randrange(RANKS),
        )
        rows.append(measured(-1 if clean else late, -1 if clean else host, other))
        print(json.dumps(rows[-1]), flush=True)
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} jobs: the planted and nothing else was named")
    meta = metadata.collect("environment", RANKS, {}, "tcp")
    write(options.output, meta, rows, right=right, jobs=len(rows))


def measured(late: int, host: int, other: int) -> dict[str, Any]:
    """Run a job; return what was planted (-1: nothing) and what was named."""
    with tempfile.TemporaryDirectory() as folder:
        run(late, host, other, folder)
        command = [sys.executable, "-m", "pycoll", "trace", "--json", folder]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=False
        )
    found = json.loads(done.stdout)
    named = sorted([one["kind"], *one["ranks"]] for one in found["findings"])
    planted = [["disagreement", other]]
    planted += [["late", late]] if late >= 0 else []
    planted += [["port", 2 * host, 2 * host + 1]] if host >= 0 else []
    how = {
        one["kind"]: {
            key: one[key] for key in ("median_ns", "GBps", "others_GBps", "direction") if key in one
        }
        for one in found["findings"]
    }
    return {
        "late": late,
        "slow_host": host,
        "other_algorithm": other,
        "planted": sorted(planted),
        "named": named,
        "right": named == sorted(planted),
        "how": how,
        "clock_error_us": (found["clock_error_ns"] or 0) / 1000,
    }


def run(late: int, host: int, other: int, folder: str) -> None:
    """Run a job whose ranks write their records into a folder."""
    with Hosts(HOSTS) as hosts, contextlib.ExitStack() as stack:
        for number in range(HOSTS):
            hosts.shape(number, rate=RATE / 2 if number == host else RATE)
        for rank in range(RANKS):
            more = {
                "PYCOLL_RECORD": folder,
                "PYCOLL_TRANSPORT": "tcp",
                "PYCOLL_RANK": str(rank),
                "PYCOLL_SIZE": str(RANKS),
                "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                "PYCOLL_SECRET": "5eed" * 16,
            }
            command = [sys.executable, __file__, "--rank", str(late), str(other)]
            process = hosts.run(rank * HOSTS // RANKS, command, environment() | more)
            stack.callback(process.wait, SECONDS)


def job(late: int, other: int) -> None:
    """Be a rank."""
    import time

    import numpy as np

    import pycoll

    comm = pycoll.init(timeout=SECONDS / 2)
    rng = np.random.default_rng(7)
    x = rng.random((comm.size, 1 << 17), np.float32)
    few, out = np.ones(64, np.float32), np.empty(1 << 17, np.float32)
    for _ in range(CALLS):
        comm.allreduce(few)
        if comm.rank == late:
            time.sleep(LATE_SECONDS)
        comm.allreduce(x[comm.rank], out)
        assert np.allclose(out, x.sum(0), rtol=1e-4)
    mine = "ring" if comm.rank == other else "recursive_doubling"
    with contextlib.suppress(pycoll.MismatchError):
        comm.allreduce(x[comm.rank], out, algorithm=mine)
        raise AssertionError("ranks ran two algorithms in one call")


if __name__ == "__main__":
    main()
