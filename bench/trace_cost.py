"""What does the event ring cost a call? The engine as it is beside one that keeps no events.

Run: python bench/trace_cost.py [--launches 48]

The other engine is compiled from the same sources with PC_NO_TRACE, in a copy of the checkout. Two
ranks that share memory make all-reduces of 8 bytes, by call and by plan; a launch is one job, and
both engines take turns. A cell is the median over blocks of the slowest rank; given is with less
without of each pair of launches: the median, and its 95 % interval by the sign test, as now and
then a whole job takes twice as long, whose cores the host has moved. The mean and its interval by
Student's t, which such a job stretches, are given besides.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from before_after import RANK, T95, pairs, spawned
from launch import RESULTS, ROOT, write

from pycoll.benchmark import metadata

COPIED = ("pycoll", "native", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--launches", type=int, default=48, help="pairs: 4 to 8, 10, 12, 16, 24 or 48"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "trace-cost.json")
    options = parser.parse_args()
    if options.launches - 1 not in T95:
        parser.error(f"--launches is {options.launches}, want 4 to 8, 10, 12, 16, 24 or 48")
    with tempfile.TemporaryDirectory() as folder:
        # Both are copies: two folders of one disk, compiled by the same command.
        trees = {"before": Path(folder, "without"), "after": Path(folder, "with")}
        built(trees["before"], "-DPC_NO_TRACE")
        built(trees["after"], "")
        rows = pairs(trees, options.launches, functools.partial(spawned, RANK))
    for row in rows:
        row["which"] = {"before": "without", "after": "with"}[row["which"]]
    ns = {cell: difference(rows, cell) for cell in rows[0]["seconds"]}
    for cell, found in ns.items():
        print(f"{cell:6}", *(f"{key} {value:.1f}" for key, value in found.items()))
    write(options.output, metadata.collect("spawn", 2, {}, "shm"), rows, ns=ns)


def built(tree: Path, flags: str) -> None:
    """Make a copy of this checkout, and compile its engine."""
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("_native*", "__pycache__")
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j2"],
        cwd=tree,
        env=os.environ | {"CFLAGS": flags},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    print(f"# built {tree.name}", flush=True)


def difference(rows: list[dict[str, Any]], cell: str) -> dict[str, float]:
    """Return with less without of the pairs, in ns: the median, the mean, and their intervals."""
    by_pair: dict[int, dict[str, float]] = {}
    for row in rows:
        by_pair.setdefault(row["pair"], {})[row["which"]] = 1e9 * row["seconds"][cell]
    found = [pair["with"] - pair["without"] for pair in by_pair.values()]
    mean = statistics.fmean(found)
    half = T95[len(found) - 1] * statistics.stdev(found) / math.sqrt(len(found))
    without = statistics.median(pair["without"] for pair in by_pair.values())
    low, high = sign_interval(sorted(found))
    return {
        "median": round(statistics.median(found), 1),
        "low": round(low, 1),
        "high": round(high, 1),
        "mean": round(mean, 1),
        "mean_low": round(mean - half, 1),
        "mean_high": round(mean + half, 1),
        "without": round(without, 1),
    }


def sign_interval(found: list[float]) -> tuple[float, float]:
    """Return the ends of the median's 95 % interval: as many lie outside as chance allows."""
    n, outside, beyond = len(found), 0, 0.0
    while (beyond := beyond + math.comb(n, outside) / 2**n) <= 0.025:
        outside += 1
    return found[max(0, outside - 1)], found[n - max(1, outside)]


if __name__ == "__main__":
    main()
