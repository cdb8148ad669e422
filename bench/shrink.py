"""How long from the death of a rank until those who live have the first right result?

Each job loses one rank, another one each time, amid all-reduces; the others shrink and make one in
the new communicator. Counted is from just before the kill to the last of the survivors. Open
MPI's ULFM (revoke, shrink) does the same in jobs in between.

Run: python bench/shrink.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cluster import Hosts, lack
from launch import arguments, environment, mpis, write

ELEMENTS = 1000
SECONDS = 120  #: until a job of ours fails
HANGS = 30  #: until one of ULFM's is said to hang
WARM = 20  #: calls before the death


def main() -> None:
    parser = arguments(__doc__, "shrink.json")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        by, victim, folder = options.rank
        (ulfm if by == "ULFM" else ours)(int(victim), folder)
        return
    openmpi = mpis(options)[0]
    rows: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        victim = repeat % 8
        rows.append(measured("pycoll", "shm", 8, victim, lambda f, v=victim: spawned(8, v, f)))
        # By mpirun too, which gives ULFM the same start; it takes ranks' own ends well so.
        command = [*openmpi.command(8), __file__, "--rank"]
        command[1:1] = ["--with-ft", "ulfm"]
        rows.append(
            measured("ULFM", "shm", 8, victim, lambda f, v=victim, c=command: started(c, v, f))
        )
        rows.append(measured("pycoll", "forked", 64, victim, lambda f, v=victim: spawned(64, v, f)))
        if not lack():
            victim = repeat % 4
            rows.append(measured("pycoll", "tcp", 4, victim, lambda f, v=victim: spread(4, v, f)))
    from pycoll.benchmark import metadata

    medians: dict[str, Any] = {}
    for row in rows:
        medians.setdefault(f"{row['by']}, {row['what']}, {row['ranks']} ranks", []).extend(
            [] if row["failed"] else [row["ms"]]
        )
    found = {
        name: {"median": round(statistics.median(ms), 1), "worst": max(ms), "jobs": len(ms)}
        for name, ms in medians.items()
    }
    write(options.output, metadata.collect("pycoll.spawn", 8, {}), rows, ms=found)
    print(json.dumps(found, indent=1))


def measured(
    by: str, what: str, ranks: int, victim: int, run: Callable[[str], None]
) -> dict[str, Any]:
    """Run a job; return how long it took, and its stages on the slowest of the survivors."""
    row = {"by": by, "what": what, "ranks": ranks, "victim": victim}
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(folder)
        except subprocess.TimeoutExpired:
            print(row, "hangs", flush=True)
            return row | {"failed": True}
        died = float(Path(folder, "died").read_text())
        told = [json.loads(path.read_text()) for path in Path(folder).glob("rank*")]
    if by == "ULFM" and len(told) < ranks - 1:
        print(row, f"{len(told)} of {ranks - 1} have the result", flush=True)
        return row | {"failed": True}
    assert len(told) == ranks - 1, f"{by}: {len(told)} of {ranks - 1} have told"
    last = max(told, key=lambda one: one["right"])
    ms = {stage: round(1e3 * (last[stage] - died), 2) for stage in ("heard", "shrunk", "right")}
    print(row | ms, flush=True)
    return row | {
        "failed": False,
        "ms": ms["right"],
        "heard_ms": ms["heard"],
        "shrunk_ms": ms["shrunk"],
    }


def spawned(ranks: int, victim: int, folder: str) -> None:
    """Fork the ranks of a job from this process."""
    import pycoll

    pycoll.spawn(ours, ranks, victim, folder, timeout=SECONDS, check=False)


def started(command: list[str], victim: int, folder: str) -> None:
    """Have mpirun start the ranks of a job, which ends as its dead rank did."""
    process = subprocess.Popen(
        [*command, "ULFM", str(victim), folder],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(HANGS)
    finally:
        process.terminate()  # it ends its ranks
        process.wait(SECONDS)


def spread(ranks: int, victim: int, folder: str) -> None:
    """Run a job with each rank on a host of its own, whose only way to the others is TCP."""
    with Hosts(ranks) as hosts, contextlib.ExitStack() as stack:
        for rank in range(ranks):
            more = {
                "PYCOLL_RANK": str(rank),
                "PYCOLL_SIZE": str(ranks),
                "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                "PYCOLL_SECRET": "5eed" * 16,
            }
            command = [sys.executable, __file__, "--rank", "pycoll", str(victim), folder]
            process = hosts.run(rank, command, environment() | more)
            stack.callback(process.wait, SECONDS)


def ours(victim: int, folder: str) -> None:
    """Be a rank of pycoll's."""
    import pycoll

    comm = pycoll.init(timeout=SECONDS)
    made = [comm]

    def shrink() -> int:
        made.append(comm.shrink())
        return made[-1].size

    def reduce(x: Any) -> Any:
        return made[-1].allreduce(x)

    with dies(comm.rank, victim, folder, reduce, shrink, pycoll.PycollError):
        comm.barrier()
    for one in reversed(made):
        one.close()


def ulfm(victim: int, folder: str) -> None:
    """Be a rank of Open MPI's."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    made = [MPI.COMM_WORLD]

    def shrink() -> int:
        made[-1].Revoke()
        made.append(made[-1].Shrink())
        made[-1].Set_errhandler(MPI.ERRORS_RETURN)
        return int(made[-1].size)

    def reduce(x: Any) -> Any:
        out = np.empty_like(x)
        made[-1].Allreduce(x, out)
        return out

    ends = (MPI.Exception,)
    with dies(MPI.COMM_WORLD.rank, victim, folder, reduce, shrink, MPI.Exception, ends):
        MPI.COMM_WORLD.Barrier()
    os._exit(0)  # MPI_Finalize would wait for the dead


@contextlib.contextmanager
def dies(
    rank: int,
    victim: int,
    folder: str,
    reduce: Callable[[Any], Any],
    shrink: Callable[[], int],
    error: type[Exception],
    ends: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Call until the victim has died and the rest has shrunk; write down when.

    Args:
        rank: This one.
        victim: The one that dies.
        folder: What is written down lies here.
        reduce: Makes an all-reduce.
        shrink: Shrinks; returns how many are left.
        error: What a call raises once a rank is lost.
        ends: What the last call may raise, as ranks that have made theirs end.
    """
    data = np.random.default_rng(rank).integers(0, 1000, ELEMENTS).astype(float)
    for _ in range(WARM):
        reduce(data.copy())
    yield
    if rank == victim:
        time.sleep(0.2 + random.random() / 100)  # amid the others' calls
        Path(folder, "died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            reduce(data.copy())
    except error:
        heard = time.monotonic()
    size = shrink()
    shrunk = time.monotonic()
    total = reduce(data.copy())
    right = time.monotonic()
    with contextlib.suppress(*ends):
        reduce(data.copy())  # the job goes on: nobody leaves, or checks, while others are at it
    want = sum(
        np.random.default_rng(r).integers(0, 1000, ELEMENTS).astype(float)
        for r in range(size + 1)
        if r != victim
    )
    assert np.array_equal(total, want)
    told = {"heard": heard, "shrunk": shrunk, "right": right}
    Path(folder, f"rank{rank}").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
