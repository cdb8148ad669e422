"""8 ranks on few cores beside a foreign process that burns one: how much faster, launch by launch?

An all-reduce of 4 B; pycoll and that launch's MPI take turns within a launch, and launches under
both MPIs alternate. What the scheduler does differs from launch to launch, so what counts is the
distribution of the launches' ratios, an MPI's time over pycoll's, and not one median of them.

Run: python bench/busy_neighbour.py [--launches 20]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from launch import arguments, burning, mpis, write

RANKS = 8
SIZES = ["--min", "4", "--max", "4"]
QUANTILES = {"least": 0, "p10": 10, "median": 50, "p90": 90, "most": 100}


def main() -> None:
    parser = arguments(__doc__, "busy-neighbour.json")
    parser.add_argument("--launches", type=int, default=20, help="under each MPI")
    parser.add_argument("--repeats", default="5")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    with burning(True):
        for turn in range(options.launches):
            for mpi in mpis(options):
                more = [*SIZES, "--against", "mpi4py", "--repeats", options.repeats]
                result = mpi.bench(RANKS, *more)
                meta = meta or result["meta"]
                meta["versions"][mpi.name] = result["meta"]["versions"].get("mpi")
                rows += [row | {"mpi": mpi.name, "round": turn} for row in result["rows"]]
    found = {name: spread(faster(rows, name)) for name in ("openmpi", "mpich")}
    write(options.output, meta, rows, times_faster=found)
    print("# an MPI's time over pycoll's: " + ", ".join(QUANTILES))
    for name, by in found.items():
        print(f"{name:<10}", *(f"{value:8.1f}" for value in by.values()))


def faster(rows: list[dict[str, Any]], mpi: str) -> list[float]:
    """Return how many times faster pycoll was in each launch under one MPI."""
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["mpi"] == mpi:
            times.setdefault(row["round"], {})[row["library"]] = row["time_us"]["median"]
    return [of["mpi4py"] / of["pycoll"] for of in times.values()]


def spread(values: list[float]) -> dict[str, float]:
    """Return the distribution."""
    return {name: float(np.percentile(values, q)) for name, q in QUANTILES.items()}


if __name__ == "__main__":
    main()
