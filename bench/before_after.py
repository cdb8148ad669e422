"""Has a small call become slower? This checkout beside another one, in alternating launches.

Run: python bench/before_after.py --before ../other-checkout [--launches 8]

Each launch is a job of two ranks that have memory in common. It times blocks of all-reduces of
8 bytes, by call and by plan, and its figure is the median over the blocks of the slowest rank. A
launch of one checkout and the next of the other are a pair; the pairs' order alternates, since the
host moves the cores about. The ratio is the geometric mean over the pairs of after / before, with
its 95 % interval by Student's t of the logarithms.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch import write

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "before-after.json"
#: Of Student's t, two-sided 95 %, by degrees of freedom.
T95 = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 23: 2.069}
RANK = """
import statistics, sys, time
import numpy as np
import pycoll

BLOCKS, CALLS = 15, 20000

def rank():
    with pycoll.init() as comm:
        x = np.ones(1)
        out = np.empty(1)
        plan = comm.plan("allreduce", x, out)
        found = {}
        for what, call in (("call", lambda: None), ("plan", plan)):
            blocks = []
            for block in range(BLOCKS):
                comm.barrier()
                start = time.perf_counter()
                if what == "call":
                    for _ in range(CALLS):
                        comm.allreduce(x, out)
                else:
                    for _ in range(CALLS):
                        plan()
                blocks.append((time.perf_counter() - start) / CALLS)
                assert out[0] == comm.size
            every = np.zeros(comm.size * BLOCKS)
            every[comm.rank * BLOCKS :][:BLOCKS] = blocks
            comm.allreduce(every)
            found[what] = statistics.median(every.reshape(comm.size, BLOCKS).max(0))
        return found

import json
print(json.dumps(pycoll.spawn(rank, 2, timeout=120)[0]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout, built")
    parser.add_argument("--launches", type=int, default=8, help="pairs: 4 to 8, 10, 12, 16 or 24")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.launches - 1 not in T95:
        parser.error(f"--launches is {options.launches}, want 4 to 8, 10, 12, 16 or 24")
    trees = {"before": options.before.resolve(), "after": ROOT}
    rows: list[dict[str, Any]] = []
    for pair in range(options.launches):
        order = ("before", "after") if pair % 2 == 0 else ("after", "before")
        for which in order:
            row = {"pair": pair, "which": which, **launch(trees[which])}
            rows.append(row)
            print(row, flush=True)
    ratios = {what: ratio(rows, what) for what in ("call", "plan")}
    print(json.dumps(ratios, indent=1))
    from pycoll.benchmark import metadata

    meta = metadata.collect("spawn", 2, {}) | {"before": commit(trees["before"])}
    write(options.output, meta, rows, ratios=ratios)


def launch(tree: Path) -> dict[str, float]:
    """Return the seconds of a call and of a plan in one job of a checkout."""
    done = subprocess.run(
        [sys.executable, "-c", RANK],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ratio(rows: list[dict[str, Any]], what: str) -> dict[str, float]:
    """Return after / before of the pairs: the geometric mean and its 95 % interval."""
    pairs: dict[int, dict[str, float]] = {}
    for row in rows:
        pairs.setdefault(row["pair"], {})[row["which"]] = row[what]
    logs = [math.log(pair["after"] / pair["before"]) for pair in pairs.values()]
    mean = statistics.fmean(logs)
    half = T95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return {
        "ratio": round(math.exp(mean), 4),
        "low": round(math.exp(mean - half), 4),
        "high": round(math.exp(mean + half), 4),
    }


def commit(tree: Path) -> str:
    """Return which commit a checkout is at."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
