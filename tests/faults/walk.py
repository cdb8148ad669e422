"""A walk of random kills: in job after job a rank is killed, and the others must say so rightly.

``python tests/faults/walk.py --jobs 768 --ways shm,tcp,mixed,verbs`` plays them and prints, for
each way of transport, how soon the survivors raised. It exits with 1 if one of them hung, named
another rank, held a wrong element or left something behind. test_walk.py plays a short form of it.

A job is some ranks, mostly four, on this machine, of which `host_of` says who shares memory with
whom: all, none (TCP, or RDMA over the stand-in for libibverbs), or two and two. Every rank is the
victim equally often. It kills itself with SIGKILL from a thread of its own, after a delay drawn
from the seed, so that it dies wherever its other threads happen to be.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import mmap
import os
import random
import re
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pycoll
from pycoll import Communicator, PycollError
from pycoll.benchmark import metadata
from pycoll.bootstrap import job as jobs
from pycoll.runtime.native import bindings, codes

ROOT = Path(__file__).parents[2]
SIZE = 4
WAYS = ("shm", "tcp", "mixed", "libfabric", "verbs")
TIMEOUT = 12.0  #: of the job's waits
PATIENCE = 90.0  #: until a rank that has not raised is said to hang
SOON = 1.0  #: seconds in which every survivor is to have raised
ARMED_SECONDS = 0.06  #: the victim dies at most this long after it was armed
COLLECTIVES = (
    *("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall"),
    *("gather", "scatter", "barrier"),
)
DEATH = struct.Struct("<dI")  #: when, and the process


class Job(NamedTuple):
    """What one job is; the same seed plays the same one."""

    number: int
    way: str
    work: str
    victim: int
    seed: int
    size: int = SIZE


class Heard(NamedTuple):
    """What one survivor says."""

    rank: int
    seconds: float | None  #: from the death to the exception; None if there was none
    kind: str = ""
    text: str = ""
    then: str = ""  #: the exception of the next call
    wrong: bool = False  #: a result had wrong elements
    left: int = 0  #: descriptors and threads that were left after close


class Wrong(Exception):
    """A result that is not what it must be."""


# The works. Each goes on until something is raised.

Work = Callable[[Communicator, random.Random, Callable[[], bool]], None]


def expect(found: np.ndarray, wanted: np.ndarray | float) -> None:
    if not (found == wanted).all():
        raise Wrong(f"{found.ravel()[:4]}..., want {wanted}")


def part(rank: int, call: int, count: int) -> np.ndarray:
    """What a rank gives to a call: small whole numbers, whose sum is the same in any order."""
    return np.arange(count) * (rank + 3) % 113 + float(call % 17)


def call_once(comm: Communicator, draw: random.Random, number: int) -> None:
    """One collective of any kind and length; the ranks draw alike."""
    kind = draw.choice(COLLECTIVES)
    count = draw.choice((1, 100, 5000, 60_000)) * comm.size
    root = draw.randrange(comm.size)
    every = [part(rank, number, count) for rank in range(comm.size)]
    mine, each = every[comm.rank], count // comm.size
    if kind == "allreduce":
        expect(comm.allreduce(mine.copy()), sum(every))
    elif kind == "broadcast":
        expect(comm.broadcast(mine.copy(), root=root), every[root])
    elif kind == "reduce":
        found = comm.reduce(mine.copy(), root=root)
        if comm.rank == root:
            expect(found, sum(every))
    elif kind == "allgather":
        expect(comm.allgather(mine), np.concatenate(every))
    elif kind == "reduce_scatter":
        expect(comm.reduce_scatter(mine.copy()), sum(every)[comm.rank * each :][:each])
    elif kind == "alltoall":
        expect(comm.alltoall(mine), np.concatenate([e[comm.rank * each :][:each] for e in every]))
    elif kind == "gather":
        found = comm.gather(mine, root=root)
        if comm.rank == root:
            expect(found, np.concatenate(every))
    elif kind == "scatter":
        given = every[root] if comm.rank == root else None
        out = np.empty(each)
        comm.scatter(given, out=out, root=root)
        expect(out, every[root][comm.rank * each :][:each])
    else:
        comm.barrier()


def calls(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(1 << 30):
        call_once(comm, draw, number)


def one_length(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    count = draw.choice((1, 1000, 100_000))
    x = comm.empty(count) if draw.random() < 0.5 else np.empty(count)
    plan = comm.plan("allreduce", x)
    while True:
        x[:] = comm.rank + 1
        plan()
        expect(x, comm.size * (comm.size + 1) / 2)


def queued(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    while True:
        xs = [np.full(draw.choice((1, 3000, 50_000)), comm.rank + 1.0) for _ in range(6)]
        works = [comm.allreduce(x, async_op=True) for x in xs]
        if draw.random() < 0.3:
            works = works[-1:]  # the others are collected before they are waited for
        for work in works:
            work.wait()
        for x in xs:
            expect(x, comm.size * (comm.size + 1) / 2)


def messages(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    """A token goes round: at any time all but one wait in recv for a rank that lives, or not."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for number in range(1 << 30):
        count = draw.choice((1, 1000, 200_000))
        x = np.empty(count)
        if comm.rank == 0:
            comm.send(part(0, number, count), right)
        comm.recv(x, left)
        expect(x, part(0, number, count))
        if comm.rank:
            comm.send(x, right)


def waiting(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    """Every rank but the victim waits for its left neighbour; nobody ever sends."""
    comm.recv(np.empty(10), (comm.rank - 1) % comm.size)


def exchanges(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(1 << 30):
        step = draw.randrange(1, comm.size)
        to, frm = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        count = draw.choice((1, 1000, 200_000))
        x = np.empty(count)
        comm.exchange(sends=[(part(comm.rank, number, count), to)], recvs=[(x, frm)])
        expect(x, part(frm, number, count))


def counted(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(1 << 30):
        table = [[draw.choice((0, 1, 900)) for _ in range(comm.size)] for _ in range(comm.size)]
        send, receive = table[comm.rank], [row[comm.rank] for row in table]
        x = np.concatenate([part(comm.rank, number + to, n) for to, n in enumerate(send)])
        out = np.empty(sum(receive))
        comm.alltoallv(x, send, out, receive)
        parts = [part(frm, number + comm.rank, n) for frm, n in enumerate(receive)]
        expect(out, np.concatenate(parts))


def objects(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(1 << 30):
        root = draw.randrange(comm.size)
        if comm.allgather_object((comm.rank, number)) != [(r, number) for r in range(comm.size)]:
            raise Wrong("allgather_object")
        given = {"number": number} if comm.rank == root else None
        if comm.broadcast_object(given, root=root) != {"number": number}:
            raise Wrong("broadcast_object")


def splits(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(1 << 30):
        way = draw.randrange(3)
        group = comm.dup() if way == 0 else comm.split(color=comm.rank % 2 if way == 1 else 0)
        with group:
            expect(group.allreduce(np.ones(3)), group.size)
        call_once(comm, draw, number)


def groups(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    """Rank 0 by itself, and the others a group; who is in no call with the dead asks its parent."""
    with comm.split(color=int(comm.rank > 0)) as group:
        told = np.zeros(100)
        while not told[0]:  # all of a group stop in the same call
            told[:] = over()
            group.allreduce(told)
            expect(told, told[0])
    comm.barrier()


def closing(comm: Communicator, draw: random.Random, over: Callable[[], bool]) -> None:
    for number in range(draw.randrange(1, 40)):
        call_once(comm, draw, number)
    comm.close()


WORKS: dict[str, Work] = {
    "init": calls,
    "plan": one_length,
    "call": calls,
    "async": queued,
    "messages": messages,
    "waiting": waiting,
    "exchange": exchanges,
    "counted": counted,
    "objects": objects,
    "split": splits,
    "groups": groups,
    "close": closing,
}
#: Where a rank may have been killed after it was needed.
MAY_END_WELL = ("close",)
#: Where a group may be what raises, which counts its ranks anew and whose parent breaks by itself.
IN_GROUPS = ("split", "groups")


# One rank


def host_of(way: str, rank: int) -> int:
    """Tell on which host a rank is; those of one host share memory."""
    return {"shm": 0, "mixed": rank // 2}.get(way, rank)


@contextlib.contextmanager
def apart(way: str, rank: int) -> Iterator[None]:
    """Refuse to map the memory of ranks on other hosts, as their kernels would."""
    # A group counts its ranks anew, so what a rank says of itself has its host behind it.
    address, connect, host = bindings.comm_address, bindings.comm_connect, host_of(way, rank)

    def within_host(comm: Any, peer: int, blob: bytes) -> int:
        return connect(comm, peer, blob[:-1]) if blob[-1] == host else codes.UNMAPPABLE

    bindings.comm_address = lambda comm: address(comm) + bytes([host])
    bindings.comm_connect = within_host
    try:
        yield
    finally:
        bindings.comm_address, bindings.comm_connect = address, connect


def die_soon(death: mmap.mmap, delay: float) -> None:
    """Have this process killed after a delay."""

    def die() -> None:
        time.sleep(delay)
        death[:] = DEATH.pack(time.monotonic(), os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def died(death: mmap.mmap) -> float:
    """Return when the victim died; before it has, the end of time."""
    return DEATH.unpack(death[:])[0] or float("inf")


def held() -> int:
    """Count this process's descriptors and threads."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def left(before: int) -> int:
    """Count what is held more than before; a thread that was joined may be listed for a moment."""
    deadline = time.monotonic() + 20
    while held() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return held() - before


def run_rank(played: Job, death: mmap.mmap) -> Heard:
    """Be one rank of a job; the victim never returns."""
    mine = jobs.current()
    assert mine is not None
    rank = mine.rank
    draw, fate = random.Random(played.seed), random.Random(played.seed + 1)
    delay = fate.random() * ARMED_SECONDS
    if played.way == "verbs":
        os.environ |= {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_RAILS": f"fake{rank}:1"}
    elif played.way == "libfabric":
        os.environ |= {"PYCOLL_TRANSPORT": "libfabric", "PYCOLL_FABRIC": "tcp"}
    else:
        os.environ["PYCOLL_TRANSPORT"] = "tcp"
    before = held()
    comm = None
    at_init = played.work == "init"
    with apart(played.way, rank):
        try:
            if at_init and rank == played.victim:
                die_soon(death, delay)
            comm = pycoll.init(timeout=TIMEOUT)
            comm.barrier()
            if rank == played.victim:
                if not at_init:
                    die_soon(death, delay)
                if played.work == "waiting":
                    signal.pause()
            WORKS[played.work](comm, draw, lambda: died(death) < time.monotonic())
        except (PycollError, OSError) as error:
            now, then = time.monotonic(), next_call(comm)
            heard = Heard(rank, now - died(death), type(error).__name__, str(error), then)
        except Wrong as error:
            return Heard(rank, None, text=str(error), wrong=True)
        else:
            heard = Heard(rank, None)
        if rank == played.victim:
            # It was not killed in time, or another rank's failure came first: it dies now.
            signal.pause()
        # Some survivors leave at once, so that the others see them go; some stay for a while.
        if fate.random() < 0.5 + rank / 8:
            time.sleep(0.5)
        if comm is not None:
            comm.close()
            del comm
        return heard._replace(left=left(before) if heard.then else 0)


def next_call(comm: Communicator | None) -> str:
    """Tell what the call after the failure raises."""
    if comm is None:
        return "no communicator"
    try:
        comm.barrier()
    except PycollError as error:
        return type(error).__name__
    return "nothing"


# The judge


def play(played: Job) -> list[str]:
    """Play a job; return what was wrong, and note what was heard."""
    death = mmap.mmap(-1, DEATH.size)
    try:
        found = pycoll.spawn(run_rank, played.size, played, death, timeout=PATIENCE, check=False)
    except PycollError as error:
        return [f"hang: {error}"]
    troubles = []
    for rank, heard in enumerate(found):
        if rank == played.victim:
            continue
        if not isinstance(heard, Heard):
            troubles.append(f"rank {rank}: bare {type(heard).__name__}: {heard}")
            continue
        NOTES.append((played, heard))
        victim = DEATH.unpack(death[:])[1]
        troubles += [f"rank {rank}: {text}" for text in judge(played, heard, victim)]
    return troubles


NOTES: list[tuple[Job, Heard]] = []


def judge(played: Job, heard: Heard, victim: int) -> Iterator[str]:
    """Say what is wrong with what a survivor heard."""
    if heard.wrong:
        yield f"wrong element: {heard.text}"
        return
    if heard.seconds is None:
        if played.work not in MAY_END_WELL:
            yield "raised nothing"
        return
    if played.work == "init" and heard.kind == "BootstrapError":
        # It may have died before anybody knew of it: then the time runs out, and it is missed. Or
        # rank 0 saw it die and raised, and is not there any more for a rank that comes later.
        late = played.victim and "did not reach rank 0 at" in heard.text
        if not late and not re.search(
            rf"\brank {played.victim}\b|ranks .*\b{played.victim}\b", heard.text
        ):
            yield f"wrong name: {heard.text}"
        return
    # A Work behind the one that failed, which may have been collected, says that it is broken.
    behind = played.work == "async" and heard.kind == "BrokenError"
    if heard.kind != "PeerLostError" and not behind:
        yield f"{heard.kind}: {heard.text}"
    else:
        named = re.search(r"\brank (\d+) \((?:rank \d+ of the job, )?process (\d+) ", heard.text)
        if (
            named is None
            or int(named[2]) != victim
            or (int(named[1]) != played.victim and played.work not in IN_GROUPS)
        ):
            yield f"wrong name: {heard.text}"
    well = {"BrokenError", "no communicator"}
    if heard.then not in (well | {"PeerLostError"} if played.work in IN_GROUPS else well):
        yield f"then: {heard.then} after {heard.text}"
    if heard.left > 0:
        yield f"left {heard.left} descriptors or threads"


def schedule(
    jobs: int, seed: int, ways: Sequence[str], works: Sequence[str] = tuple(WORKS), size: int = SIZE
) -> Iterator[Job]:
    """Return the jobs of a walk: ways, works and victims take turns, so that none is left out."""
    draw = random.Random(seed)
    for number in range(jobs):
        way = ways[number % len(ways)]
        work = works[number // len(ways) % len(works)]
        # It changes from each to the next, and in `size` rounds everyone has died everywhere.
        victim = (number + number // len(ways) + number // (len(ways) * len(works))) % size
        yield Job(number, way, work, victim, draw.getrandbits(32), size)


def children() -> int:
    """Count the processes that this one has left."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0
    return 1


def figures(way: str, wrong: dict[str, int]) -> dict[str, Any]:
    """Return what the survivors of one way of transport heard."""
    raised = sorted(
        (heard.seconds, played.number, heard.rank)
        for played, heard in NOTES
        if played.way == way and heard.seconds is not None and heard.kind == "PeerLostError"
    )
    times = [seconds for seconds, _, _ in raised]
    played = {job.number for job, _ in NOTES if job.way == way}
    return {
        "way": way,
        "jobs": len(played),
        "survivors": sum(1 for job, _ in NOTES if job.way == way),
        "raised": len(times),
        "median_s": round(statistics.median(times), 4) if times else None,
        "worst_s": round(times[-1], 3) if times else None,
        "worst": {"job": raised[-1][1], "rank": raised[-1][2]} if times else None,
        f"later_than_{SOON:g}_s": sum(seconds > SOON for seconds in times),
        "troubles": wrong.get(way, 0),
    }


def result(seed: int, size: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a walk found, and where."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = {"commit": metadata.commit(), "machine": metadata.machine(), "date": date}
    return {"meta": {**where, "seed": seed, "ranks": size}, "rows": rows}


def use_stand_in() -> tempfile.TemporaryDirectory[str]:
    """Give this process, and the ranks that it forks, the stand-in's RDMA devices."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "fakeverbs")]
    import stand_in

    folder = tempfile.TemporaryDirectory(prefix="walk-")
    stand_in.load(Path(folder.name) / "fabric", devices=8)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=SIZE, help="ranks of a job")
    parser.add_argument(
        "--ways", default="shm,tcp,mixed", help="of shm, tcp, mixed, libfabric, verbs"
    )
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--only", type=int, help="play the job of this number alone")
    parser.add_argument("--json", help="a file for the figures")
    asked = parser.parse_args()
    ways, works = asked.ways.split(","), asked.works.split(",")
    folder = use_stand_in() if "verbs" in ways else None
    wrong: dict[str, int] = {}
    for played in schedule(asked.jobs, asked.seed, ways, works, asked.size):
        if asked.only is not None and played.number != asked.only:
            continue
        for trouble in play(played):
            wrong[played.way] = wrong.get(played.way, 0) + 1
            print(f"{played}: {trouble}", flush=True)
    rows = [figures(way, wrong) for way in ways]
    for row in rows:
        print(json.dumps(row))
    if processes := children():
        print("processes were left behind")
    if asked.json:
        Path(asked.json).write_text(
            json.dumps(result(asked.seed, asked.size, rows), indent=1) + "\n"
        )
    if folder is not None:
        folder.cleanup()
    return 1 if wrong or processes else 0


if __name__ == "__main__":
    sys.exit(main())
