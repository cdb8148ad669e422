"""What does the event ring cost a call? The engine as it is beside one that keeps no events.

Run: python bench/trace_cost.py [--launches 8]

The other engine is compiled from the same sources with PC_NO_TRACE, in a copy of the checkout. Two
ranks that share memory make all-reduces of 8 bytes, by call and by plan; a launch is one job, and
both engines take turns. A cell is the median over blocks of the slowest rank; given is with less
without of each pair of launches, as the mean and its 95 % interval by Student's t.
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
    parser.add_argument("--launches", type=int, default=8, help="pairs: 4 to 8, 10, 12, 16 or 24")
    parser.add_argument("--output", type=Path, default=RESULTS / "trace-cost.json")
    options = parser.parse_args()
    if options.launches - 1 not in T95:
        parser.error(f"--launches is {options.launches}, want 4 to 8, 10, 12, 16 or 24")
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
    """Return with less without of the pairs, in ns: the mean and its 95 % interval."""
    by_pair: dict[int, dict[str, float]] = {}
    for row in rows:
        by_pair.setdefault(row["pair"], {})[row["which"]] = 1e9 * row["seconds"][cell]
    found = [pair["with"] - pair["without"] for pair in by_pair.values()]
    mean = statistics.fmean(found)
    half = T95[len(found) - 1] * statistics.stdev(found) / math.sqrt(len(found))
    without = statistics.median(pair["without"] for pair in by_pair.values())
    return {
        "difference": round(mean, 1),
        "low": round(mean - half, 1),
        "high": round(mean + half, 1),
        "without": round(without, 1),
    }


if __name__ == "__main__":
    main()
