"""What does the fixed order cost? Reductions in it beside those in any order, by size.

2 to 8 ranks that have memory in common (shm), that have a host each (tcp), and, of even numbers
from 4 on, that share two hosts (hosts: tcp between them). Hosts are network namespaces; they need
root.

In each round the calls of a size take turns, both orders one after the other, and which is first
changes with the round. A turn is a block of back-to-back calls by a plan, as many for both; its
time is that of the slowest rank, and a cell is the median over the rounds. Before that each is
called once and its result checked: in the fixed order bit for bit against a loop over the ranks, in
any order within the rounding of a sum.

Run: python bench/fixed_order.py [--ranks 2,4,8] [--of shm,tcp,hosts] [--rounds 15]
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
from launch import RESULTS, environment, write

from pycoll.benchmark import metadata
from pycoll.cli import types

SIZES = "4,64,1K,16K,256K,1M,4M,16M,64M"
COLLECTIVES = "allreduce,reduce,reduce_scatter"
ORDERS = ("free", "fixed")
BLOCK_SECONDS = 0.02  #: of a block, at least, but for one call
PORT = 29650


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,3,4,6,8")
    parser.add_argument("--of", default="shm,tcp,hosts", help="how ranks reach each other")
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds of one job")
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
    for size in ranks:
        for way in ways:
            if way != "hosts" or (size >= 4 and size % 2 == 0):
                found = job(options, size, way)
                rows += found
                for row in found:
                    show(row)
    meta = metadata.collect("pycoll", max(ranks), {}) | {"rounds": options.rounds}
    write(options.output, meta, rows)


def job(options: argparse.Namespace, size: int, way: str) -> list[dict[str, Any]]:
    """Run one job, and return its rows."""
    count = {"shm": 1, "tcp": size, "hosts": 2}[way]
    local = size // count
    env = environment() | {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(local),
        "PYCOLL_SECRET": secrets.token_hex(32),
        "MASTER_PORT": str(PORT),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        more = [sys.executable, __file__, "--rank", str(path), "--of", way]
        for name in ("collectives", "sizes", "rounds"):
            more += [f"--{name}", str(getattr(options, name))]
        where = [{"RANK": str(number), "LOCAL_RANK": str(number % local)} for number in range(size)]
        if way == "shm":
            env["MASTER_ADDR"] = "127.0.0.1"
            ranks = [subprocess.Popen(more, env=env | one) for one in where]
            ended(ranks, options.timeout)
        else:
            with Hosts(count) as hosts:
                env["MASTER_ADDR"] = hosts.address(0)
                env["PYCOLL_TRANSPORT"] = "tcp"
                ranks = [
                    hosts.run(number // local, more, env | one) for number, one in enumerate(where)
                ]
                ended(ranks, options.timeout)
        found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def ended(ranks: list[subprocess.Popen[Any]], timeout: float) -> None:
    """Wait for all ranks; end this process if one has failed."""
    try:
        failed = [number for number, one in enumerate(ranks) if one.wait(timeout)]
    finally:
        for one in ranks:
            one.kill()
    if failed:
        sys.exit(f"ranks {failed} failed")


def rank(options: argparse.Namespace) -> None:
    """Be a rank of a job."""
    import pycoll

    with pycoll.init() as comm:
        rows = [
            measured(comm, collective, types.nbytes(nbytes), options.rounds)
            | {"way": options.of, "size": comm.size}
            for collective in options.collectives.split(",")
            for nbytes in options.sizes.split(",")
        ]
        if comm.rank == 0:
            options.rank.write_text(json.dumps(rows))


def measured(comm: Any, collective: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """Return the medians of both orders for one size."""
    count = max(1, nbytes // 4 // comm.size) * comm.size
    seed = np.random.default_rng(count)
    xs = [(seed.normal(size=count) * 3.0**-r).astype("float32") for r in range(comm.size)]
    part = slice(None)
    if collective == "reduce_scatter":
        part = slice(comm.rank * count // comm.size, (comm.rank + 1) * count // comm.size)
    plans = {}
    for order in ORDERS:
        out = np.full(xs[0][part].size, np.nan, "float32")
        plans[order] = plan = comm.plan(collective, xs[comm.rank], out, order=order)
        got = plan()
        if got is not None:
            check(got, xs, part, order)
    blocks = block(comm, plans["free"])
    times: dict[str, list[float]] = {order: [] for order in ORDERS}
    for number in range(rounds):
        for order in ORDERS if number % 2 else ORDERS[::-1]:
            comm.barrier()
            times[order].append(slowest(comm, plans[order], blocks) / blocks)
    return {
        "collective": collective,
        "nbytes": count * 4,
        "calls": blocks,
        **{
            order: {
                "algorithm": plans[order].algorithm,
                "time_us": {
                    "median": 1e6 * statistics.median(times[order]),
                    "min": 1e6 * min(times[order]),
                    "all": [round(1e6 * seconds, 3) for seconds in times[order]],
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
    mine = np.array([time.perf_counter() - begin])
    return float(comm.allreduce(mine, op="max", order="free")[0])


def show(row: dict[str, Any]) -> None:
    """Print a line."""
    free, fixed = (row[order]["time_us"]["median"] for order in ORDERS)
    names = " ".join(f"{row[order]['algorithm']:>22}" for order in ORDERS)
    print(
        f"{row['way']:5} {row['size']} ranks {row['collective']:14} {row['nbytes']:>9} {names} "
        f"{free:11.1f} us {fixed:11.1f} us {fixed / free:6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
