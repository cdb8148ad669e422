"""What does `pycoll top` cost a job? 8-byte all-reduces of 2 ranks with it running and without it.

Run: python bench/top_cost.py [--launches 16] [--seconds 5] [--interval 0.5]

A launch is a job of its own, which calls for some seconds; launches with and without are pairs, and
the pairs' order alternates. The result of each block of calls is checked, and what `pycoll top` has
printed must show the job, look by look. A look lasts some milliseconds, so that most blocks meet
none: besides their median there is the mean, in which all of it is, and the slowest. A cell's ratio
is the geometric mean over the pairs of with / without, with its 95 % interval by Student's t of the
logarithms. Where the ranks leave no core idle, `pycoll top` takes its time from theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from before_after import T95
from launch import RESULTS, ROOT, write

from pycoll.benchmark import metadata

RANKS = 2
METHOD = (
    "launches with and without pycoll top in pairs, whose order alternates; a block is 2000 calls "
    "in a row, its time the slower rank's; the last result of each block is checked"
)
RANK = """
import json, os, sys, time
import numpy as np
import pycoll

# `pycoll top` searches for ranks once a second: calls of the first two are not counted.
CALLS, WARM_SECONDS = 2000, 2

def rank(seconds):
    with pycoll.init() as comm:
        x, out, more = np.ones(1), np.empty(1), np.empty(1)
        begun = time.perf_counter()
        blocks, end = [], begun + WARM_SECONDS + seconds
        while True:
            out[0] = 0
            start = time.perf_counter()
            for _ in range(CALLS):
                comm.allreduce(x, out)
            blocks.append((time.perf_counter() - start) / CALLS)
            assert out[0] == comm.size
            # All go on as long as rank 0.
            more[0] = time.perf_counter() < end
            if not comm.broadcast(more)[0]:
                break
            if start < begun + WARM_SECONDS:
                blocks.pop()
        # Their clocks differ: one may have a block more.
        slowest = np.zeros(comm.allreduce(np.array([len(blocks)]), op="max")[0])
        slowest[len(slowest) - len(blocks):] = blocks
        comm.allreduce(slowest, slowest, op="max")
        return os.getpid(), slowest.tolist()

found = pycoll.spawn(rank, 2, float(sys.argv[1]), timeout=600)
print(json.dumps({"pids": [pid for pid, _ in found], "blocks": found[0][1]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=16, help="pairs: 4 to 8, 10, 12, 16 or 24")
    parser.add_argument("--seconds", type=float, default=5.0, help="of calls in a launch")
    parser.add_argument("--interval", type=float, default=0.5, help="between two looks, seconds")
    parser.add_argument("--output", type=Path, default=RESULTS / "top-cost.json")
    options = parser.parse_args()
    if options.launches - 1 not in T95:
        parser.error(f"--launches is {options.launches}, want 4 to 8, 10, 12, 16 or 24")
    rows = []
    for pair in range(options.launches):
        for watched in (False, True) if pair % 2 == 0 else (True, False):
            row = launch(options.seconds, options.interval if watched else None)
            rows.append({"pair": pair, "watched": watched, **row})
            times = " ".join(f"{name} {1e6 * t:.3f} us" for name, t in row["seconds"].items())
            print(f"# pair {pair}: {'with' if watched else 'without':7} {times}", flush=True)
    ratios = {cell: ratio(rows, cell) for cell in rows[0]["seconds"]}
    for cell, found in ratios.items():
        print(f"{cell:8}", *(f"{key} {value:.4f}" for key, value in found.items()))
    medians = {
        which: statistics.median(
            row["seconds"]["median"] for row in rows if row["watched"] == watched
        )
        for which, watched in (("without", False), ("with", True))
    }
    given = {"seconds": options.seconds, "interval": options.interval, "method": METHOD}
    meta = metadata.collect("spawn", RANKS, {}) | given
    write(options.output, meta, rows, medians=medians, ratios=ratios)


def launch(seconds: float, interval: float | None) -> dict[str, Any]:
    """Return the seconds of a call of one job, and how often it was looked at."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as cache:
        environment["PYCOLL_CACHE"] = cache
        with watching(interval, Path(cache, "looks"), environment):
            done = subprocess.run(
                [sys.executable, "-c", RANK, str(seconds)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        job = json.loads(done.stdout)
        looks = looked(Path(cache, "looks"), set(job["pids"])) if interval else 0
    if interval and looks < seconds / interval / 2:
        raise RuntimeError(f"pycoll top has shown the job {looks} times in {seconds:g} s")
    blocks = job["blocks"]
    times = {"median": statistics.median(blocks), "mean": statistics.fmean(blocks)}
    return {"seconds": times | {"slowest": max(blocks)}, "blocks": len(blocks), "looks": looks}


@contextlib.contextmanager
def watching(interval: float | None, to: Path, environment: dict[str, str]) -> Iterator[None]:
    """Have `pycoll top` run meanwhile, unless there is no interval; it prints to a file."""
    if interval is None:
        yield
        return
    command = [sys.executable, "-m", "pycoll", "top", "--json", "--interval", str(interval)]
    with to.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def looked(at: Path, pids: set[int]) -> int:
    """Return in how many of the snapshots a job was whole."""
    found = 0
    for line in at.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # the last one may be cut off
            groups = json.loads(line)["communicators"]
            found += any({row["pid"] for row in group["ranks"]} == pids for group in groups)
    return found


def ratio(rows: list[dict[str, Any]], cell: str) -> dict[str, float]:
    """Return with / without of the pairs: the geometric mean and its 95 % interval."""
    pairs: dict[int, dict[bool, float]] = {}
    for row in rows:
        pairs.setdefault(row["pair"], {})[row["watched"]] = row["seconds"][cell]
    logs = [math.log(pair[True] / pair[False]) for pair in pairs.values()]
    mean = statistics.fmean(logs)
    half = T95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = {"ratio": mean, "low": mean - half, "high": mean + half}
    return {name: round(math.exp(value), 4) for name, value in bounds.items()}


if __name__ == "__main__":
    main()
