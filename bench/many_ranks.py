"""Real jobs of hundreds of ranks, and a thousand, on this machine: what does it cost them?

On one host the ranks are forked from one process. Over TCP each host (a network namespace; needs
root) has one that forks its own. Every rank makes every collective, right to the bit, and says what
it holds; then one of as many ranks is killed. `bench/scale.py --real N [--hosts H]` runs it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Hosts, lack
from launch import environment

#: Bytes of the larger array of a call; 0 for one element a block.
LARGER = (0, 64 << 10, 1 << 20)
M_MMAP_THRESHOLD = -3  #: of malloc.h
TURN = 61  #: inputs repeat after so many elements, and ranks
PORT = 29500


def real(size: int, timeout: float, calls: str = "") -> list[dict[str, Any]]:
    """Fork so many ranks: every collective, right to the bit; then kill one."""
    import pycoll

    began = time.monotonic()
    answers = pycoll.spawn(job, size, size, calls, timeout=timeout)
    rows = told(answers, time.monotonic() - began)
    rows.append(killed(size, timeout))
    print(rows[-1], flush=True)
    return rows


def spread(size: int, count: int, timeout: float, calls: str = "") -> list[dict[str, Any]]:
    """Fork ranks on several hosts, whose neighbours in number share one; kill none."""
    if reason := lack():
        sys.exit(f"not measured: {reason}")
    each = size // count
    if each * count != size:
        sys.exit(f"{size} ranks do not spread evenly over {count} hosts")
    began = time.monotonic()
    with Hosts(count) as hosts, tempfile.TemporaryDirectory() as folder:
        where = environment() | {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(PORT)}
        where |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(each)}
        running = [
            hosts.run(
                host,
                [sys.executable, __file__, str(host * each), str(each), str(size), folder, calls],
                where,
            )
            for host in range(count)
        ]
        failed = [host for host, process in enumerate(running) if process.wait(timeout)]
        if failed:
            sys.exit(f"ranks of hosts {failed} failed")
        texts = [Path(folder, f"{rank}.json").read_text() for rank in range(size)]
    return told([json.loads(text) for text in texts], time.monotonic() - began)


def crew(first: int, each: int, size: int, folder: str, calls: str) -> None:
    """Fork the ranks of one host, and wait for them."""
    from pycoll.bootstrap.local_child import limit_malloc
    from pycoll.bootstrap.preload import preload

    preload(each)
    children = []
    for rank in range(first, first + each):
        child = os.fork()
        if child == 0:
            try:
                limit_malloc(each)
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank - first)}
                Path(folder, f"{rank}.json").write_text(json.dumps(job(size, calls)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(1 if failed else 0)


def told(answers: list[dict[str, Any]], wall: float) -> list[dict[str, Any]]:
    """Return what all ranks say, the slowest and the largest."""
    size = len(answers)
    rows: list[dict[str, Any]] = [{"what": "job", "ranks": size, "wall_s": round(wall, 2)}]
    for what in answers[0]["seconds"]:
        of = [answer["seconds"][what] for answer in answers]
        rows.append({"what": what, "ranks": size, "slowest_s": round(max(of), 4)})
    for what in answers[0]["counts"]:
        of = [answer["counts"][what] for answer in answers]
        rows.append(
            {"what": what, "ranks": size, "most": max(of), "mean": round(sum(of) / size, 1)}
        )
    for row in rows:
        print(row, flush=True)
    return rows


def job(size: int, calls: str) -> dict[str, Any]:
    """Be one rank: every collective at every size, held against numpy."""
    import numpy as np

    import pycoll

    seconds: dict[str, float] = {}

    def clock(what: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = call()
        seconds[what] = time.monotonic() - began
        if what != "init" and me == 0:
            print(f"# {what}: {seconds[what]:.2f} s on rank 0", file=sys.stderr, flush=True)
        return result

    me = -1
    # Arrays that are freed go back to the system: a thousand ranks keep two megabytes each else.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
    comm = clock("init", pycoll.init)
    me = comm.rank
    clock("first barrier", comm.barrier)

    def of(rank: int, first: int, count: int) -> Any:
        """Return what a rank brings: whole numbers that float32 holds exactly, in sums, too."""
        turn = ((np.arange(first, first + TURN) % TURN * (7 + rank) + 13 * rank) % TURN).astype(
            "f4"
        )
        return np.resize(turn, count)

    def summed(first: int, count: int) -> Any:
        turn = np.zeros(TURN, np.float32)
        for rank in range(size):
            turn += of(rank, first, TURN)
        return np.resize(turn, count)

    for larger in LARGER:
        whole = max(1, larger // 4)  # elements of one message of all ranks
        each = max(1, larger // 4 // size)  # of a block of each rank
        root, first, out = me == 0, me * each, np.empty(each, np.float32)

        def everyone(n: int = each) -> Any:
            return np.concatenate([of(rank, rank * n, n) for rank in range(size)])

        # Arrays are made when they are needed: of a thousand ranks' there is no room for all.
        checks: dict[str, tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], Any]]] = {
            "allreduce": (
                comm.allreduce,
                lambda n=whole: of(me, 0, n),
                lambda n=whole: summed(0, n),
            ),
            "broadcast": (
                lambda x: comm.broadcast(x, root=0),
                lambda n=whole: of(me, 0, n),
                lambda n=whole: of(0, 0, n),
            ),
            "reduce": (
                lambda x: comm.reduce(x, root=0),
                lambda n=whole: of(me, 0, n),
                lambda n=whole, root=root: summed(0, n) if root else None,
            ),
            "allgather": (comm.allgather, lambda f=first, n=each: of(me, f, n), everyone),
            "reduce_scatter": (
                comm.reduce_scatter,
                lambda n=each: of(me, 0, n * size),
                lambda f=first, n=each: summed(f, n),
            ),
            "alltoall": (
                comm.alltoall,
                lambda n=each: of(me, 0, n * size),
                lambda f=first, n=each: np.concatenate([of(r, f, n) for r in range(size)]),
            ),
            "gather": (
                lambda x: comm.gather(x, root=0),
                lambda f=first, n=each: of(me, f, n),
                lambda root=root, of_all=everyone: of_all() if root else None,
            ),
            "scatter": (
                lambda x, out=out: comm.scatter(x, out, root=0),
                lambda root=root, of_all=everyone: of_all() if root else None,
                lambda f=first, n=each: of(me, f, n),
            ),
        }
        size_of = f"{larger >> 10} KiB" if larger else "one element a block"
        for what, (call, bring, wanted) in checks.items():
            if calls and what not in calls.split(","):
                continue
            x = bring()
            got = clock(f"{what}, {size_of}, first", lambda c=call, x=x: c(x))
            del x
            want = wanted()
            if want is not None and not np.array_equal(np.asarray(got).ravel(), want):
                raise AssertionError(f"rank {me}: {what} of {size_of} is wrong")
            del got, want
            x = bring()  # a call may write to its array
            clock(f"{what}, {size_of}, again", lambda c=call, x=x: c(x))
            del x
    counts = memory()
    clock("close", comm.close)
    return {"seconds": seconds, "counts": counts}


def memory() -> dict[str, int]:
    """Return what this rank holds: memory and page tables in KiB, sockets, mapped arenas."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    status = Path("/proc/self/status").read_text().splitlines()

    def kib(lines: list[str], name: str) -> int:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

    sockets = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            sockets += os.readlink(fd).startswith("socket:")
        except OSError:
            continue  # the one that listed them
    maps = Path("/proc/self/maps").read_text().splitlines()
    arenas = {line.split()[4] for line in maps if "/memfd:pycoll" in line}
    return {
        "PSS, KiB": kib(rollup, "Pss"),
        "of which shared memory, KiB": kib(rollup, "Pss_Shmem"),
        "of which its own, KiB": kib(rollup, "Pss_Anon"),
        "page tables, KiB": kib(status, "VmPTE"),
        "sockets": sockets,
        "arenas mapped": len(arenas),
    }


def killed(size: int, timeout: float) -> dict[str, Any]:
    """Kill one rank in the middle of a job: how long until all others know its name?"""
    import pycoll

    victim = size // 2
    row: dict[str, Any] = {"what": f"rank {victim} killed", "ranks": size}
    with tempfile.TemporaryDirectory() as folder:
        try:
            answers = pycoll.spawn(mourner, size, victim, folder, timeout=timeout, check=False)
            others = [a for rank, a in enumerate(answers) if rank != victim and a is not None]
            row["ended_otherwise"] = [f"{type(a).__name__}: {a}"[:300] for a in others]
        except pycoll.PycollError as error:
            row["raised"] = type(error).__name__
        heard = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        died = Path(folder, "died").stat().st_mtime
    named = [one for one in heard if one["rank"] == victim]
    row |= {"told": len(heard), "told_the_name": len(named)}
    if heard:
        row["last_heard_s"] = round(max(one["at"] for one in heard) - died, 3)
    return row


def mourner(victim: int, folder: str) -> None:
    """Be one rank that loses another."""
    import signal

    import numpy as np

    import pycoll

    comm = pycoll.init()
    x = np.ones(1, np.float32)
    try:
        comm.allreduce(x)
        comm.barrier()
        if comm.rank == victim:
            Path(folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            comm.allreduce(x)
    except pycoll.PeerLostError as error:
        named = f"rank {victim} " in f"{error} "
        said = {"at": time.time(), "rank": victim if named else None, "text": str(error)}
        Path(folder, f"{comm.rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    first, each, size, folder, calls = sys.argv[1:]
    crew(int(first), int(each), int(size), folder, calls)
