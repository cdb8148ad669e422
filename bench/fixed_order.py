"""What does the fixed order cost? Reductions in it beside those in any order, by size.

2 to 8 ranks that have memory in common (shm), that have a host each (tcp), and, of even numbers
from 4 on, that share two hosts (hosts: tcp between them). Hosts are network namespaces; they need
root.

In each round the calls of a size take turns, both orders one after the other, and which is first
changes with the round. A turn is a block of back-to-back calls by a plan, as many for both; its
time is that of the slowest rank, and a cell is the median over the rounds. There are as many rounds
as fit the seconds of a cell, between MIN_ROUNDS and MAX_ROUNDS. Before that each is called once on
random data and its result checked: in the fixed order bit for bit against a loop over the ranks, in
any order within the rounding of a sum. `other_bits` says that it had others than the fixed order.

A line is printed as soon as a cell is measured. Some four minutes on two cores; a job of one number
of ranks and one way ends after --timeout seconds, whatever it is at.

Run: python bench/fixed_order.py [--ranks 2,4,8] [--of shm,tcp,hosts] [--seconds 0.4]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cluster import Hosts, lack
from launch import RESULTS, ROOT, environment, write

from pycoll.benchmark import metadata
from pycoll.cli import types

sys.path.append(str(ROOT / "tests"))

import ports

SIZES = "64,1K,16K,256K,1M,4M,16M"
COLLECTIVES = "allreduce,reduce,reduce_scatter"
ORDERS = ("free", "fixed")
BLOCK_SECONDS = 0.02  #: of a block, at least, but for one call
MIN_ROUNDS, MAX_ROUNDS = 6, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--of", default="shm,tcp,hosts", help="how ranks reach each other")
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.4, help="of the rounds of one cell")
    parser.add_argument("--timeout", type=float, default=150, help="seconds of one job")
    parser.add_argument("--output", type=Path, default=RESULTS / "fixed-order.json")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options)
        return
    ways = options.of.split(",")
    if ways != ["shm"] and (reason := lack()):
        sys.exit(f"there are no hosts: {reason}; --of shm does without")
    rows: list[dict[str, Any]] = []
    ranks = [int(n) for n in options.ranks.split(",")]
    began = time.perf_counter()
    for size in ranks:
        for way in ways:
            if way != "hosts" or (size >= 4 and size % 2 == 0):
                rows += job(options, size, way)
    meta = metadata.collect("pycoll", max(ranks), {}) | {
        "cell_seconds": options.seconds,
        "seconds": round(time.perf_counter() - began),
    }
    write(options.output, meta, rows)


def job(options: argparse.Namespace, size: int, way: str) -> list[dict[str, Any]]:
    """Run one job, and return its rows."""
    count = {"shm": 1, "tcp": size, "hosts": 2}[way]
    local = size // count
    env = environment() | {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(local),
        "PYCOLL_SECRET": secrets.token_hex(32),
        "MASTER_PORT": str(ports.free()),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        more = [sys.executable, __file__, "--rank", str(path), "--of", way]
        for name in ("collectives", "sizes", "seconds"):
            more += [f"--{name}", str(getattr(options, name))]
        where = [{"RANK": str(number), "LOCAL_RANK": str(number % local)} for number in range(size)]
        what = f"the job of {size} ranks by {way}"
        if way == "shm":
            env["MASTER_ADDR"] = "127.0.0.1"
            finish(what, [subprocess.Popen(more, env=env | one) for one in where], options.timeout)
        else:
            with Hosts(count) as hosts:
                env["MASTER_ADDR"] = hosts.address(0)
                env["PYCOLL_TRANSPORT"] = "tcp"
                ranks = [
                    hosts.run(number // local, more, env | one) for number, one in enumerate(where)
                ]
                finish(what, ranks, options.timeout)
        found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def finish(what: str, ranks: list[subprocess.Popen[Any]], timeout: float) -> None:
    """Wait for all ranks; end this process if one has failed, or if it takes too long."""
    deadline = time.monotonic() + timeout
    try:
        codes = [one.wait(max(0.0, deadline - time.monotonic())) for one in ranks]
    except subprocess.TimeoutExpired:
        sys.exit(f"{what} was not over after {timeout:g} s; the last line says how far it came")
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    if any(codes):
        sys.exit(f"{what}: ranks {[n for n, code in enumerate(codes) if code]} failed")


def rank(options: argparse.Namespace) -> None:
    """Be a rank of a job."""
    import pycoll

    rows = []
    with pycoll.init() as comm:
        for nbytes in map(types.nbytes, options.sizes.split(",")):
            xs = messages(comm.size, nbytes)
            for collective in options.collectives.split(","):
                row = measured(comm, collective, xs, options.seconds)
                rows.append(row | {"way": options.of, "size": comm.size})
                if comm.rank == 0:
                    show(rows[-1])
        if comm.rank == 0:
            options.rank.write_text(json.dumps(rows))


def messages(size: int, nbytes: int) -> list[np.ndarray]:
    """Return what all ranks bring: of both signs, so that they cancel, and of each rank smaller.

    Every rank makes them all, and on few cores in turns: a normal distribution would take a minute
    for eight ranks and 64 MiB, where this takes seconds.
    """
    count = max(1, nbytes // 4 // size) * size
    random = np.random.default_rng(count)
    return [
        (random.random(count, "float32") - np.float32(0.5)) * np.float32(3.0**-rank)
        for rank in range(size)
    ]


def measured(comm: Any, collective: str, xs: list[np.ndarray], seconds: float) -> dict[str, Any]:
    """Return the medians of both orders for one size."""
    count = xs[0].size
    part = slice(None)
    if collective == "reduce_scatter":
        part = slice(comm.rank * count // comm.size, (comm.rank + 1) * count // comm.size)
    plans, results = {}, {}
    for order in ORDERS:
        out = np.full(xs[0][part].size, np.nan, "float32")
        plans[order] = plan = comm.plan(collective, xs[comm.rank], out, order=order)
        got = plan()
        if got is not None:
            check(got, xs, part, order)
        results[order] = out.tobytes()
    other = highest(comm, results["free"] != results["fixed"])
    calls = block(comm, plans["free"])
    pair = sum(slowest(comm, plans[order], calls) for order in ORDERS)  # also their warm-up
    rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, round(seconds / pair))) // 2 * 2
    times: dict[str, list[float]] = {order: [] for order in ORDERS}
    for number in range(rounds):
        for order in ORDERS if number % 2 else ORDERS[::-1]:
            comm.barrier()
            times[order].append(slowest(comm, plans[order], calls) / calls)
    return {
        "collective": collective,
        "nbytes": count * 4,
        "calls": calls,
        "rounds": rounds,
        "other_bits": bool(other),
        "ratio": statistics.median(times["fixed"]) / statistics.median(times["free"]),
        **{
            order: {
                "algorithm": plans[order].algorithm,
                "time_us": {
                    "median": 1e6 * statistics.median(times[order]),
                    "min": 1e6 * min(times[order]),
                    "all": [round(1e6 * each, 3) for each in times[order]],
                },
            }
            for order in ORDERS
        },
    }


def check(got: np.ndarray, xs: list[np.ndarray], part: slice, order: str) -> None:
    """Raise unless a result is right."""
    loop = functools.reduce(np.add, xs)[part]
    if order == "fixed":
        if got.tobytes() != loop.tobytes():
            raise AssertionError("not the bits of a loop over the ranks")
        return
    most = np.sum([np.abs(x[part]) for x in xs], axis=0)
    if not (np.abs(got - loop) <= 1e-5 * most + 1e-30).all():
        raise AssertionError("not the sum")


def block(comm: Any, plan: Any) -> int:
    """Return how many calls a block has, the same on all ranks."""
    calls, seconds = 1, slowest(comm, plan, 1)
    while seconds < BLOCK_SECONDS / 4:
        calls *= 4
        seconds = slowest(comm, plan, calls)
    return max(1, round(calls * BLOCK_SECONDS / seconds))


def slowest(comm: Any, plan: Any, calls: int) -> float:
    """Return how long the slowest rank takes for some calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        plan()
    return highest(comm, time.perf_counter() - begin)


def highest(comm: Any, value: float) -> float:
    """Return the highest value that a rank has, on all of them."""
    return float(comm.allreduce(np.array([value], float), op="max", order="free")[0])


def show(row: dict[str, Any]) -> None:
    """Print a line."""
    free, fixed = (row[order]["time_us"]["median"] for order in ORDERS)
    names = " ".join(f"{row[order]['algorithm']:>22}" for order in ORDERS)
    print(
        f"{row['way']:5} {row['size']} ranks {row['collective']:14} {row['nbytes']:>9} {names} "
        f"{free:11.1f} us {fixed:11.1f} us {row['ratio']:6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
