"""Does a built-in have a privilege? Its own source under a user's decorator, against itself.

Run: python bench/user_algorithm.py
"""

from __future__ import annotations

import argparse
import functools
import inspect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from launch import RESULTS, write

import pycoll
from pycoll.algorithms import get
from pycoll.benchmark import metadata, report
from pycoll.benchmark.oob import gather
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case, Rules, measure
from pycoll.cli.algorithm import load_algorithm
from pycoll.dtypes import ReduceOp

HEADER = """from pycoll.schedule import ScheduleBuilder, allreduce
from pycoll.algorithms import algorithm


"""
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="two_shot")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS / "user-algorithm.json")
    options = parser.parse_args()
    source = inspect.getsource(get(options.algorithm).function)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.py")
        path.write_text(HEADER + source)
        arguments = options.algorithm, str(path), options.repeats
        meta, rows = pycoll.spawn(rank, options.ranks, *arguments, timeout=3600)[0]
    ratios = []
    for own, builtin in zip(rows[::2], rows[1::2], strict=True):
        ratio = own["time_us"]["median"] / builtin["time_us"]["median"]
        ratios.append({"nbytes": own["nbytes"], "ratio": round(ratio, 4)})
        print(ratios[-1])
    write(options.output, meta, rows, ratios=ratios)


def rank(name: str, path: str, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Time both forms on one rank."""
    mine = load_algorithm(f"{path}:{name}")
    rows = []
    with pycoll.init() as comm:
        for nbytes in SIZES:
            x, out = np.empty(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
            problem = Problem(
                OPERATIONS["allreduce"], x.size, "float32", ReduceOp.SUM, comm.rank, comm.size
            )
            cases = []
            for library, algorithm in (("user", mine), ("pycoll", name)):
                run = functools.partial(comm.allreduce, x, out, algorithm=algorithm)
                cases.append(Case(library, name, "shm", "numpy", "call", x, out, run))
            timings = measure(cases, problem, gather(comm), Rules(repeats))
            for case, timing in zip(cases, timings, strict=True):
                rows.append(report.row(case, timing, problem))
        return metadata.collect(comm.launcher, comm.size, {}), rows


if __name__ == "__main__":
    main()
