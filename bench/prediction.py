"""How well does a tuned job know what its collectives take, and does it pick the fastest?

A job calibrates itself as `pycoll tune` does. Then every algorithm is timed at sizes that were
not measured, in between: the time of the picked algorithm is compared with what was predicted for
it, and with the time of the algorithm that turns out the fastest.

Run: python bench/prediction.py [--ranks 2,4,8]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from launch import arguments, mpis, write

NAME = "prediction.json"
SELF = str(Path(__file__).resolve())


def main() -> None:
    parser = arguments(__doc__, NAME)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--seconds", type=float, default=10.0, help="to tune")
    parser.add_argument("--check", type=float, default=30.0, help="seconds for the other sizes")
    parser.add_argument("--max", type=int, default=16 << 20)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # be one rank
    options = parser.parse_args()
    if options.work is not None:
        return work(options)
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    settings = ["--seconds", str(options.seconds), "--check", str(options.check)]
    for ranks in map(int, options.ranks.split(",")):
        for mpi in mpis(options)[:1]:  # times are pycoll's own: any launcher will do
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "rows.json")
                print(f"# {mpi.name}: {ranks} ranks", flush=True)
                more = [*settings, "--max", str(options.max), "--work", str(path)]
                print(mpi.run(ranks, SELF, *more), end="", flush=True)
                result = json.loads(path.read_text())
            meta = meta or result["meta"]
            rows += [row | {"ranks": ranks, "mpi": mpi.name} for row in result["rows"]]
    summary = summarize(rows)
    write(options.output, meta, rows, summary=summary)
    print(json.dumps(summary, indent=1))


def work(options: argparse.Namespace) -> None:
    """Be one rank: tune, then time the sizes in between."""
    import pycoll
    from pycoll.benchmark import metadata
    from pycoll.benchmark.tuner import METHOD, SIZES, Tuner, tuned
    from pycoll.schedule import COLLECTIVES

    with pycoll.init() as comm:
        facts = comm.explain("allreduce", 4).question
        names = tuple(COLLECTIVES)
        medians = Tuner(comm, facts, options.seconds).calibrate(names, options.max).medians
        between = Tuner(comm, facts, options.check)
        # In the middle of neighbouring sizes, by their logarithms, and not multiples of 64.
        sizes = [math.isqrt(a * b) + 12 for a, b in itertools.pairwise(SIZES)]
        found = between.calibrate(names, options.max, [n for n in sizes if n < options.max]).medians
        if comm.rank == 0:
            rows = compare(facts, tuned(facts, medians), found)
            meta = metadata.collect(comm.launcher, comm.size, {"pycoll": pycoll.__version__})
            meta |= {
                "method": f"{METHOD}; {options.seconds:g} s to tune, {options.check:g} s for "
                "the sizes in between"
            }
            options.work.write_text(json.dumps({"meta": meta, "rows": rows}))
        comm.barrier()


def compare(facts: Any, tuning: Any, found: dict[Any, float]) -> list[dict[str, Any]]:
    """Return a row for every collective and size: what was picked, predicted and measured."""
    from pycoll.cost.candidate import candidates
    from pycoll.cost.select import winner

    groups: dict[tuple[str, int], dict[str, float]] = {}
    for cell, seconds in found.items():
        groups.setdefault((cell.collective, cell.nbytes), {})[cell.algorithm] = seconds
    rows = []
    for (collective, nbytes), times in sorted(groups.items()):
        question = facts._replace(collective=collective, nbytes=nbytes)
        known = {c.algorithm: c for c in candidates(question, tuning, full=True)}
        pick = winner(known.values())
        if pick is None or pick.algorithm not in times:
            continue  # its time was not taken: the seconds were too few
        best = min(times, key=times.__getitem__)
        measured = times[pick.algorithm]
        rows.append(
            {
                "collective": collective,
                "nbytes": nbytes,
                "algorithm": pick.algorithm,
                "predicted_us": round(pick.seconds * 1e6, 4),
                "model_us": round((pick.predicted or 0.0) * 1e6, 4),
                "measured_us": round(measured * 1e6, 4),
                "error": round(abs(pick.seconds / measured - 1), 4),
                "best": best,
                "slower": round(measured / times[best], 4),
            }
        )
    return rows


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the two figures, of all cells and by number of ranks."""
    parts = {"all": rows}
    for ranks in sorted({row["ranks"] for row in rows}):
        parts[f"{ranks} ranks"] = [row for row in rows if row["ranks"] == ranks]
    return {
        name: {
            "cells": len(part),
            "median_error": statistics.median(row["error"] for row in part),
            "within_10_percent": sum(row["slower"] <= 1.1 for row in part) / len(part),
        }
        for name, part in parts.items()
        if part
    }


if __name__ == "__main__":
    main()
