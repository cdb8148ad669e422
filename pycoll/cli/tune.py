"""``pycoll tune``: measure every algorithm on the machine at hand, for later jobs to choose by."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import pycoll
from pycoll.benchmark import metadata, quality
from pycoll.benchmark.calibration import Cell
from pycoll.benchmark.tuner import ITEMSIZE, METHOD, Found, Tuner, errors, left_out, tuned
from pycoll.cli import spawn
from pycoll.cli.types import nbytes, positive, some_of
from pycoll.config import Config
from pycoll.cost import Machine, Question
from pycoll.cost.store import require_writable, store
from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES

LARGEST = 64 << 20
#: Share of the time that measuring takes; the rest is to guess before and to fit behind.
MEASURING = 0.75


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    parser = commands.add_parser(
        "tune",
        help="measure every algorithm here, for later jobs to choose by",
        description="Start it as the jobs will be started, such as `mpirun -n 8 pycoll tune`, or "
        "with --ranks 8. What it measures is stored in the cache directory and found by every "
        "later job of as many ranks on such a machine.",
    )
    option = parser.add_argument
    option("--seconds", type=float, default=10.0, metavar="S", help="in all (default 10)")
    some = some_of(COLLECTIVES, "no collective")
    option("--collectives", type=some, default=tuple(COLLECTIVES), metavar="NAMES")
    option("--max", type=nbytes, default=LARGEST, metavar="SIZE", help="largest (default 64M)")
    option("--ranks", type=positive, metavar="N", help="start N ranks here, without a launcher")
    option("--cache", type=Path, metavar="DIRECTORY", help="where to store (default: the cache)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start ranks if asked to, then tune."""
    if not options.seconds > 0:
        raise UsageError(f"--seconds is {options.seconds}, want more than 0")
    if options.ranks is not None:  # before there are ranks, one of which would leave the others
        require_writable(options.cache or Config.load().cache)
    return spawn.run(options.ranks, work, options)


def work(options: argparse.Namespace) -> int:
    """Be one rank of the calibration."""
    with pycoll.init() as comm:
        if comm.size == 1:
            raise UsageError("one rank has nothing to choose; start with mpirun -n 2, or --ranks 2")
        first = comm.rank == 0
        facts = comm.explain("allreduce", ITEMSIZE).question
        tuner = Tuner(comm, facts, MEASURING * options.seconds)
        if first:
            require_writable(options.cache or Config.load().cache)
            print(f"# pycoll tune: {comm.size} ranks, {options.seconds:g} s", flush=True)
            print(*not_measured(options.collectives, facts), sep="", end="", flush=True)
        found = tuner.calibrate(options.collectives, options.max)
        code = np.zeros(1, np.int32)
        if first:
            versions = {"pycoll": pycoll.__version__}
            meta = metadata.collect(comm.launcher, comm.size, versions, comm.transport)
            code[0] = keep(facts, found, options, meta)
        comm.broadcast(code)
    return int(code[0])


def not_measured(collectives: Iterable[str], facts: Question) -> Iterator[str]:
    """Yield a line for each algorithm that the choice does not offer among so many ranks."""
    for collective in collectives:
        for name, reason in left_out(collective, facts).items():
            yield f"# not measured, as it is not offered: {collective} {name} {reason}\n"


def keep(
    facts: Question, found: Found, options: argparse.Namespace, meta: Mapping[str, Any]
) -> int:
    """Store what is worth it, and say what was found; return the exit code."""
    kept = quality.kept(found.medians, found.sizes)
    for text in kept.dropped:
        print(f"pycoll tune: not stored: {text}; --seconds gives more time", file=sys.stderr)
    if not kept.medians:
        return 1
    tuning = tuned(facts, kept.medians)
    off = quality.off(errors(facts, tuning, kept.medians))
    if off is not None and off > quality.ASTRAY:
        tuning = replace(tuning, rates=Machine.of(facts).rates)
    spread = quality.spread({cell: found.samples[cell] for cell in kept.medians})
    for text in quality.remarks(spread, off):
        print(f"pycoll tune: {text}", file=sys.stderr)
    print(summary(kept.medians, off, spread))
    measured = {"method": METHOD, "spread": spread, "model_off": off}
    where = options.cache or Config.load().cache
    print(f"# wrote {store(where, pycoll.__version__, facts, tuning, {**meta, **measured})}")
    return 0


def summary(medians: Mapping[Cell, float], off: float | None, spread: float | None) -> str:
    """Return the fastest algorithm of every size as a table, and how sure that is."""
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for cell, seconds in medians.items():
        key = cell.collective, cell.nbytes
        best[key] = min(best.get(key, (math.inf, "")), (seconds, cell.algorithm))
    lines = [f"{'collective':<16}{'bytes':>12}  {'algorithm':<22}{'us':>12}"]
    for (collective, n), (seconds, name) in sorted(best.items()):
        lines.append(f"{collective:<16}{n:>12}  {name:<22}{seconds * 1e6:>12.2f}")
    model = "" if off is None else f"; the fitted model is off by {off:.0%} (median)"
    noise = "" if spread is None else f"; samples of a call differ by {spread:.0%}"
    lines.append(f"# {len(medians)} cells measured{noise}{model}")
    return "\n".join(lines)
