"""Has a call become slower? This checkout beside another one, in alternating launches.

Run: python bench/before_after.py --before ../other-checkout [--of KIND] [--launches 8]

A launch is one job of one checkout. What it times:

small  2 ranks that have memory in common and no MPI: all-reduces of 8 bytes, by call and by plan;
       the median over many blocks of the slowest rank
first  2, 4 and 8 of such ranks: what the start, the first all-reduce of each size, which makes its
       plan, later ones and the end take the slowest rank
shm    what bench/allreduce_two_ranks.py does: 2 ranks, 4 B to 256 MiB, by call and by plan, of
       NumPy arrays and of those of comm.empty
tcp    what bench/tcp_allreduce.py does: 4 hosts (network namespaces; needs root) with a rank
       each, 4 B to 64 MiB

The last two run pycoll alone, under the checkout's own Open MPI.

A launch of one checkout and the next of the other are a pair; the pairs' order alternates, since
the host moves the cores about. A cell's ratio is the geometric mean over the pairs of after /
before, with its 95 % interval by Student's t of the logarithms.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Hosts, Spread, lack
from launch import MPI, RESULTS, ROOT, write

from pycoll.benchmark import metadata

RANKS = {"small": 2, "first": 8, "shm": 2, "tcp": 4}
#: Of Student's t, two-sided 95 %, by degrees of freedom.
T95 = {
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    9: 2.262,
    11: 2.201,
    15: 2.131,
    23: 2.069,
    47: 2.012,
}
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

FIRST = """
import json, statistics, time
import numpy as np
import pycoll

CALLS = 50

def rank():
    def clock(what, call):
        start = time.perf_counter()
        call()
        seconds[what] = time.perf_counter() - start

    seconds = {}
    clock("init", lambda: made.append(pycoll.init()))
    comm = made.pop()
    clock("first barrier", comm.barrier)
    for nbytes in (8, 65536, 4194304):
        x, out = np.ones(nbytes // 8), np.empty(nbytes // 8)
        clock(f"first of {nbytes}", lambda: comm.allreduce(x, out))
        later = []
        for _ in range(CALLS):
            comm.barrier()
            start = time.perf_counter()
            comm.allreduce(x, out)
            later.append(time.perf_counter() - start)
        seconds[f"later of {nbytes}"] = statistics.median(later)
        assert (out == comm.size).all()
    clock("close", comm.close)
    return seconds

made, found = [], {}
for size in (2, 4, 8):
    said = pycoll.spawn(rank, size, timeout=120)
    found |= {f"{size} ranks, {what}": max(one[what] for one in said) for what in said[0]}
print(json.dumps(found))
"""
SCRIPTS = {"small": RANK, "first": FIRST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout, built")
    parser.add_argument("--of", choices=tuple(RANKS), default="small", help="what to time")
    parser.add_argument(
        "--launches", type=int, default=8, help="pairs: 4 to 8, 10, 12, 16, 24 or 48"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.launches - 1 not in T95:
        parser.error(f"--launches is {options.launches}, want 4 to 8, 10, 12, 16, 24 or 48")
    name = "before-after.json" if options.of == "small" else f"before-after-{options.of}.json"
    output = options.output or RESULTS / name
    trees = {"before": options.before.resolve(), "after": ROOT}
    with contextlib.ExitStack() as stack:
        script = SCRIPTS.get(options.of)
        launch = functools.partial(spawned, script) if script else job(options.of, stack)
        rows = pairs(trees, options.launches, launch)
    ratios = {cell: ratio(rows, cell) for cell in rows[0]["seconds"]}
    for cell, found in ratios.items():
        print(f"{cell:32}", *(f"{key} {value:.3f}" for key, value in found.items()))
    launcher = "spawn" if options.of in SCRIPTS else "openmpi"
    transport = "tcp" if options.of == "tcp" else "shm"
    meta = metadata.collect(launcher, RANKS[options.of], {}, transport)
    write(output, meta | {"before": commit(trees["before"])}, rows, ratios=ratios)


def pairs(
    trees: dict[str, Path], count: int, launch: Callable[[Path], dict[str, float]]
) -> list[dict[str, Any]]:
    """Return the seconds of each launch, both checkouts in turn."""
    rows: list[dict[str, Any]] = []
    for pair in range(count):
        order = ("before", "after") if pair % 2 == 0 else ("after", "before")
        for which in order:
            rows.append({"pair": pair, "which": which, "seconds": launch(trees[which])})
            print(f"# pair {pair}: {which}", flush=True)
    return rows


def spawned(script: str, tree: Path) -> dict[str, float]:
    """Return the seconds that a script of a checkout prints; its cache is empty."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYCOLL_CACHE": cache},
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def job(kind: str, stack: contextlib.ExitStack) -> Callable[[Path], dict[str, float]]:
    """Return what runs ``pycoll bench`` of a checkout and gives the seconds of every cell."""
    if reason := kind == "tcp" and lack():
        sys.exit(f"tcp is not measured: {reason}")
    hosts = stack.enter_context(Hosts(RANKS[kind])) if kind == "tcp" else None
    sweep = ["--max", "256M", "--call", "both", "--arrays", "both"]
    sweep = sweep if hosts is None else ["--max", "64M"]

    def launch(tree: Path) -> dict[str, float]:
        mpi = ("openmpi", tree / ".venv", tree)
        at = MPI(*mpi) if hosts is None else Spread(*mpi, hosts=hosts)
        result = at.bench(RANKS[kind], "--min", "4", *sweep, timeout=300)
        ran = result["meta"]["commit"].removesuffix("+")
        if ran != commit(tree):
            raise RuntimeError(f"{tree} was to run {commit(tree)}, ran {ran}")
        if wrong := [row for row in result["rows"] if row["wrong"]]:
            raise RuntimeError(f"{tree} computed wrong elements: {wrong}")
        return {
            f"{row['nbytes']} {row['call']} {row['arrays']}": row["time_us"]["median"] * 1e-6
            for row in result["rows"]
        }

    return launch


def ratio(rows: list[dict[str, Any]], cell: str) -> dict[str, float]:
    """Return after / before of the pairs: the geometric mean and its 95 % interval."""
    pairs: dict[int, dict[str, float]] = {}
    for row in rows:
        pairs.setdefault(row["pair"], {})[row["which"]] = row["seconds"][cell]
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
