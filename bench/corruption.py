"""Are flipped bits found and rightly named, is nothing else found, and what does it cost?

Flips: one bit in each call, planted in a slot of shared memory, on the wire, or in a result, over
all algorithms and 2 to 5 ranks. Alarms: checked calls on random bits, NaNs among them, in which
nothing is planted. Cost: all-reduces, by how many calls one is checked; on a quiet machine.

Run: python bench/corruption.py flips [--seeds 2]
     python bench/corruption.py alarms [--calls 100000]
     python bench/corruption.py cost

Each leaves what the others have written as it is.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from launch import ROOT, arguments, write

sys.path[:0] = [str(ROOT / "tests" / "flips")]

SECONDS = 3600.0  #: until a job fails
SIZES = (2, 3, 4, 5)
PLACES = ("result", "slot", "wire")
NBYTES = (8, 64 << 10, 16 << 20)
EVERY = (0, 100, 10, 1)
#: Calls of a block, by their length: so many that one in a hundred is checked several times.
CALLS = {8: 2000, 64 << 10: 1000, 16 << 20: 100}


def main() -> None:
    parser = arguments(__doc__, "corruption.json")
    parser.add_argument("part", choices=["flips", "alarms", "cost"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=100_000, help="of each number of ranks")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from pycoll.benchmark import metadata

    if options.part == "flips":
        found: Any = flips(options.seeds)
    elif options.part == "alarms":
        found = alarms(options.calls)
    else:
        found = cost(options.rounds)
    meta = metadata.collect("pycoll.spawn", max(SIZES), {}, "shm, tcp")
    kept = _kept(options.output)
    parts = {**kept.get("parts", {}), options.part: {"meta": meta, **found[1]}}
    rows = [row for row in kept.get("rows", []) if row["part"] != options.part]
    rows += [{"part": options.part, **row} for row in found[0]]
    write(options.output, meta, rows, parts=parts)
    print(json.dumps(found[1], indent=1))


def _kept(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def flips(seeds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Plant a bit in a call of each algorithm, in each place, with each number of ranks."""
    import flips as planting

    from pycoll import algorithms

    names = [
        (c, name)
        for c in ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
        for name in algorithms.names(c)
        if "hierarchical" not in name
    ]
    names += [(c, name) for c in ("gather", "scatter") for name in algorithms.names(c)]
    rows = []
    for seed in range(seeds):
        for size in SIZES:
            for place in PLACES:
                rng = random.Random(f"{seed} {size} {place}")
                stories = [
                    planting.Story.of(rng, place, *one, size)
                    for one in [*names, ("alltoallv", None)]
                ]
                ended = planting.run(stories, size, seed)
                rows += [_row(planting, s, e, size) for s, e in zip(stories, ended, strict=True)]
                print(f"# seed {seed}, {size} ranks, {place}", flush=True)
    summary: dict[str, Any] = {}
    for place in (*PLACES, "all"):
        mine = [row for row in rows if row["planted"] and place in (row["place"], "all")]
        summary[place] = {
            "planted": len(mine),
            "found": sum(row["found"] for row in mine),
            "rightly named": sum(row["named"] for row in mine),
            "and nothing else is named": sum(row["fits"] == 1 for row in mine),
        }
    return rows, summary


def _row(planting: Any, story: Any, ends: list[Any], size: int) -> dict[str, Any]:
    planted = any(end.flip is not None for end in ends)  # else a late rank was sent nothing
    found = planted and all(end.found for end in ends)
    return {
        "place": story.place,
        "collective": story.collective,
        "algorithm": story.algorithm,
        "ranks": size,
        "planted": planted,
        "found": found,
        "named": found and planting.named(story, ends),
        # How many are named: hops, or of a result ranks.
        "fits": len(ends[0].ranks if story.place == "result" else ends[0].hops) if found else None,
    }


def alarms(calls: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make so many checked calls of 2 ranks, and of 4."""
    import pycoll

    os.environ["PYCOLL_CHECK"] = "1"
    rows = []
    for size in (2, 4):
        began = time.monotonic()
        found = pycoll.spawn(_calls, size, calls, timeout=SECONDS)
        seconds = round(time.monotonic() - began, 1)
        rows.append({"ranks": size, "calls": calls, "alarms": sum(found), "seconds": seconds})
        print(rows[-1], flush=True)
    totals = {name: sum(row[name] for row in rows) for name in ("calls", "alarms")}
    return rows, {"checked calls": totals["calls"], "false alarms": totals["alarms"]}


def _calls(calls: int) -> int:
    import pycoll

    alarms = 0
    with pycoll.init() as comm:
        rng, own = random.Random(1), np.random.default_rng(comm.rank)
        names = pycoll.algorithms.names("allreduce")
        for _ in range(calls):
            count = rng.choice((1, 4, 30, 200)) * comm.size
            dtype = rng.choice(("float64", "float32", "float16", "int32"))
            x = own.integers(0, 256, count * np.dtype(dtype).itemsize, "u1").view(dtype)
            op, kind = rng.choice(("sum", "prod", "min", "max", "avg")), rng.randrange(8)
            try:
                if kind < 4:
                    comm.allreduce(x, op=op, algorithm=rng.choice(names))
                elif kind == 4:
                    comm.reduce_scatter(x, op=op)
                elif kind == 5:
                    comm.reduce(x, op=op, root=rng.randrange(comm.size))
                elif kind == 6:
                    comm.allgather(x)
                else:
                    comm.alltoall(x)
            except pycoll.CorruptionError as error:
                alarms += 1
                print(error, flush=True)
    return alarms


def cost(rounds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time all-reduces of 2 ranks, in place, by how many of them one is checked."""
    import pycoll

    rows = []
    for turn in range(rounds):
        for every in EVERY:
            os.environ["PYCOLL_CHECK"] = str(every)
            for nbytes, seconds in zip(
                NBYTES, zip(*pycoll.spawn(_times, 2), strict=True), strict=True
            ):
                us = round(1e6 * max(seconds), 3)
                rows.append({"round": turn, "every": every, "nbytes": nbytes, "us": us})
        print(f"# round {turn}", flush=True)
    ratios: dict[str, dict[str, float]] = {}
    for every in EVERY[1:]:
        for nbytes in NBYTES:
            of = [_one(rows, t, every, nbytes) / _one(rows, t, 0, nbytes) for t in range(rounds)]
            ratios.setdefault(f"one of {every}", {})[f"{nbytes} B"] = round(
                statistics.median(of), 2
            )
    return rows, {"time over that without checks": ratios}


def _one(rows: list[dict[str, Any]], turn: int, every: int, nbytes: int) -> float:
    return next(
        float(row["us"])
        for row in rows
        if (row["round"], row["every"], row["nbytes"]) == (turn, every, nbytes)
    )


def _times() -> list[float]:
    """Return the seconds of a call of each length: the median of blocks."""
    import pycoll

    found = []
    with pycoll.init() as comm:
        for nbytes in NBYTES:
            x, blocks = np.zeros(nbytes // 4, "f4"), []
            calls = CALLS[nbytes]
            for block in range(4):
                comm.barrier()
                began = time.perf_counter()
                for _ in range(calls):
                    comm.allreduce(x)
                if block:  # the first one makes plans, and touches memory
                    blocks.append((time.perf_counter() - began) / calls)
            found.append(statistics.median(blocks))
    return found


if __name__ == "__main__":
    main()
