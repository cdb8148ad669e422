"""Over RDMA: does a job live through cut links, and how long does it stall?

Ranks on hosts of their own, with two NICs each, all-reduce random data and check every element,
while cables are pulled, flap and lose packets, NICs go down and ranks are killed: one thing at a
time, at random, from a seed. After each the job must have gone on with right results, its paths
must be back, and it must own what it owned before; a rank that was killed must be an error of all
others. After each job nothing of it may be left in the kernel, nor may a receiver ever have been
found not ready (RNR). Takes 15 minutes at most; a result that is not complete is gone on with by
the next run of the same commit and seed. Needs `make rdma-packages`.

Run: python bench/rdma_cuts.py [--seed N]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch import RESULTS, write
from rdma import GuestError, Rack, Ranks, machine

from pycoll.benchmark import metadata

Row = dict[str, Any]

RAILS = 2
RANK = str(Path(__file__).with_name("rdma_cuts_rank.py"))
KINDS = {"cable": 6, "nic": 5, "flap": 4, "loss": 4, "kill": 1}  #: and how often, in proportion
SECONDS = 60.0  #: in which anything that a job should do has been done
RNR = ("rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err")
COUNTERS = "cd /sys/class/infiniband; cat rxe*/ports/1/hw_counters/{" + ",".join(RNR) + "}"


class Job:
    """Running ranks, and what is asked of them."""

    def __init__(self, rack: Rack, size: int) -> None:
        env = {"PYCOLL_TRANSPORT": "verbs", "PYCOLL_TIMEOUT": str(SECONDS)}
        argv = [sys.executable, RANK]
        self.ranks = Ranks(rack, argv, size, hosts=size, rails=RAILS, env=env, stdin=True)
        self._lines = [0] * size
        try:
            for rank in range(size):
                if (said := self.read(rank)) != {"transport": "verbs"}:
                    raise GuestError(f"rank {rank} says {said}, want to go by verbs")
            until(lambda: whole(self.ask()), "all paths at the beginning", self)
            self.owned = [owned(state) for state in self.ask()]
            time.sleep(1)
            self.calm = max(state["longest"] for state in self.ask())  #: without any cut
        except BaseException:
            self.close()
            raise

    def read(self, rank: int) -> Row:
        """Return the next line that a rank wrote."""
        line = self.ranks[rank].line(self._lines[rank], SECONDS)
        self._lines[rank] += 1
        found: Row = json.loads(line)
        return found

    def ask(self, what: str = "state") -> list[Row]:
        """Return how every rank stands."""
        for rank in self.ranks:
            rank.send(f"{what}\n")
        return [self.read(rank) for rank in range(len(self.ranks))]

    def stop(self) -> None:
        """Let the ranks leave; GuestError if one does not end well."""
        self.ask("stop")
        self.ranks.finish(SECONDS)

    def close(self) -> None:
        """Kill what still runs."""
        self.ranks.__exit__()


def whole(states: list[Row]) -> bool:
    """Tell whether every path carries messages."""
    return all(s["wire"]["live"] == s["wire"]["connections"] > 0 for s in states)


def owned(state: Row) -> tuple[int, int]:
    """Return how many objects of the device a rank has."""
    return state["wire"]["queue_pairs"], state["wire"]["regions"]


def until(done: Callable[[], bool], what: str, job: Job) -> None:
    """Wait for a state of the job."""
    deadline = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > deadline:
            states = "\n".join(map(str, job.ask()))
            raise GuestError(f"{what}: not in {SECONDS:g} seconds. The ranks say:\n{states}")
        time.sleep(0.05)


def cut(job: Job, rack: Rack, draw: random.Random) -> Row:
    """Do one thing to a running job and return what came of it."""
    (kind,) = draw.choices([*KINDS], [*KINDS.values()])
    nic, hold = draw.randrange(rack.nics.count), draw.uniform(0.05, 1.5)
    row: Row = {"kind": kind, "nic": nic, "hold": round(hold, 3)}
    if kind == "kill":
        return row | kill(job, nic // RAILS)
    job.ask()
    before = job.ask()  # the first began the clocks anew
    hurt(kind, rack, nic, hold)
    rack.heal()
    begun = time.monotonic()
    seen = before

    def back() -> bool:
        nonlocal seen
        seen = job.ask()
        longest.append(max(state["longest"] for state in seen))
        moved = all(s["turns"] > b["turns"] + 1 for s, b in zip(seen, before, strict=True))
        return moved and whole(seen)

    longest: list[float] = []
    until(back, f"all paths again after {row}", job)
    # What began before the paths were back has ended by now, or is seen by the next question.
    row |= {"stall": round(max(longest), 4), "whole_after": round(time.monotonic() - begun, 3)}
    for name in ("failures", "revivals", "replayed"):
        row[name] = sum(
            s["wire"][name] - b["wire"][name] for s, b in zip(seen, before, strict=True)
        )
    row["replay_ms"] = round(max(s["wire"]["recovery_ns"] for s in seen) / 1e6, 3)  # of the job
    row["wrong"] = sum(s["wrong"] - b["wrong"] for s, b in zip(seen, before, strict=True))
    if [owned(state) for state in seen] != job.owned:
        row["leaked"] = f"{[owned(state) for state in seen]} where there were {job.owned}"
    return row


def hurt(kind: str, rack: Rack, nic: int, hold: float) -> None:
    """Do to a NIC or its cable what is to be done, for so many seconds."""
    nics = rack.nics
    if kind == "flap":
        for _ in range(3):
            nics.cut(nic)
            time.sleep(hold / 5)
            nics.mend(nic)
            time.sleep(hold / 5)
        return
    if kind == "loss":
        nics.shape(nic, loss=0.05)
    else:
        {"cable": nics.cut, "nic": nics.disable}[kind](nic)
    time.sleep(hold)


def kill(job: Job, victim: int) -> Row:
    """Kill a rank: each other one must fail, and know who it was."""
    job.ranks[victim].signal(9)
    job.ranks[victim].wait(SECONDS)
    row: Row = {"victim": victim, "stall": 0.0, "wrong": 0}
    for rank in range(len(job.ranks)):
        if rank == victim:
            continue
        said = job.read(rank)
        if f"rank {victim}" not in said.get("text", ""):
            raise GuestError(f"rank {victim} was killed, and rank {rank} says {said}")
        row["stall"] = max(row["stall"], round(said["after"], 4))
        row["wrong"] += said["wrong"]
        row["error"] = said["error"]
    codes = job.ranks.wait(SECONDS)
    if any(code != 3 for rank, code in enumerate(codes) if rank != victim):
        raise GuestError(f"rank {victim} was killed, and the ranks ended with {codes}")
    return row


def left(rack: Rack) -> str:
    """Return what the kernel says that processes have of its RDMA objects."""
    said: str = rack.guest.run(["rdma", "resource", "show"]).stdout
    return said


def not_ready(rack: Rack) -> int:
    """Return how often a receiver was not ready, over all devices."""
    said = rack.guest.run(["bash", "-c", COUNTERS]).stdout
    return sum(map(int, said.split()))


def measure(
    rack: Rack, options: argparse.Namespace, rows: list[Row], save: Callable[[], None]
) -> None:
    """Cut until there are as many rows as wanted or the time is over."""
    over = time.monotonic() + options.seconds
    nothing, last = left(rack), False
    job: Job | None = None
    try:
        while len(rows) < options.cuts and not last:
            number = len(rows)
            draw = random.Random(f"{options.seed} {number}")
            row: Row = {"number": number}
            try:
                if job is None:
                    job = Job(rack, options.ranks)
                    row["calm"] = round(job.calm, 4)
                row |= cut(job, rack, draw)
                last = number + 1 == options.cuts or time.monotonic() > over
                if last and row["kind"] != "kill":
                    job.stop()
                if last or row["kind"] == "kill":  # which has ended the job
                    job.close()
                    job = None
                    if (now := left(rack)) != nothing:
                        row["leaked"] = f"{now} where there was {nothing}"
            except GuestError as error:
                row["flaw"] = str(error)
                print(f"# {number}: {error}", file=sys.stderr, flush=True)
                if job is not None:
                    job.close()
                job = None
                rack.heal()
                last = time.monotonic() > over
            row["not_ready"] = not_ready(rack)
            rows.append(row)
            save()
            print(
                " ".join(f"{key}={value}" for key, value in row.items() if key != "flaw"),
                flush=True,
            )
        if job is not None:
            job.stop()
    finally:
        if job is not None:
            job.close()


def summary(rows: list[Row]) -> Row:
    """Return what the rows say together: seconds that the job stalled, and all that went wrong."""
    found: Row = {
        "cuts": len(rows),
        "wrong": sum(row.get("wrong", 0) for row in rows),
        "flaws": sum("flaw" in row for row in rows),
        "leaks": sum("leaked" in row for row in rows),
        "not_ready": max((row["not_ready"] for row in rows), default=0),
        "replay_ms": max((row.get("replay_ms", 0) for row in rows), default=0),
    }
    for name in ("failures", "revivals", "replayed"):
        found[name] = sum(row.get(name, 0) for row in rows)
    found["calm"] = max((row.get("calm", 0) for row in rows), default=0)
    for kind in KINDS:
        stalls = sorted(row["stall"] for row in rows if row.get("kind") == kind and "stall" in row)
        if stalls:
            found[kind] = {
                "count": len(stalls),
                "median": statistics.median(stalls),
                "p90": stalls[-(-len(stalls) * 9 // 10) - 1],
                "max": stalls[-1],
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "rdma-cuts.json", metavar="FILE")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=840, help="no cut begins later")
    options = parser.parse_args()
    rows, meta = resumed(options)
    if rows:
        print(f"# {options.output} has {len(rows)} cuts of this commit and seed: going on")
    with machine(options.ranks, options.ranks * RAILS) as there:
        meta["guest"] = there.guest.release

        def save() -> None:
            found = {"meta": meta, "rows": rows, "summary": summary(rows)}
            options.output.write_text(json.dumps(found) + "\n")

        measure(there.rack, options, rows, save)
    write(options.output, meta, rows, summary=summary(rows))
    print(json.dumps(summary(rows), indent=1))
    if len(rows) < options.cuts:
        print(f"# {len(rows)} of {options.cuts} cuts: run again to go on")


def resumed(options: argparse.Namespace) -> tuple[list[Row], Row]:
    """Return the rows that there are already, and the meta of all."""
    meta = metadata.collect("none", options.ranks, {}, "verbs") | {
        "seed": options.seed,
        "rails": RAILS,
    }
    meta["method"] = " ".join((__doc__ or "").split("\n\n")[1].split())
    if not options.output.exists():
        return [], meta
    found = json.loads(options.output.read_text())
    same = all(found["meta"].get(key) == meta[key] for key in ("commit", "seed", "ranks"))
    if not same or len(found["rows"]) >= options.cuts:
        return [], meta
    return found["rows"], found["meta"]


if __name__ == "__main__":
    main()
