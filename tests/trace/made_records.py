"""Record files of jobs that never ran, with one thing planted in them that a report has to name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOB = "1ed0a718e47599af"
COMM = "0123456789abcdef"
LINE = "/home/me/train.py"
MS = 1_000_000
SECOND = 1_000_000_000
#: Of clocks of hosts: how far they are apart, and how well the difference is known.
SKEW, CLOCK_ERROR = 10**15, 20_000
#: Of arrivals: the mean of what chance adds.
NOISE = 30_000
RATE = 10.0  #: bytes in a nanosecond of a healthy link

CALLS = (
    ("allreduce", "ring", 1 << 20, "float32", "sum"),
    ("broadcast", "binomial_tree", 4096, "int64", ""),
    ("allgather", "ring", 1 << 16, "float32", ""),
    ("barrier", "dissemination", 0, "", ""),
)


@dataclass
class Planted:
    """What is wrong with the job."""

    late: dict[int, int] = field(default_factory=dict)  #: by rank: how late, to each call
    once: dict[int, tuple[int, int]] = field(default_factory=dict)  #: by rank: the call, how late
    slow: dict[tuple[int, int, int], float] = field(default_factory=dict)  #: from, to, rail: factor
    other: dict[int, dict[str, Any]] = field(default_factory=dict)  #: by rank: fields of one call
    stopped: set[int] = field(default_factory=set)  #: ranks that do not come to the last call
    dead: set[int] = field(default_factory=set)  #: ranks that died before the last call
    lacking: set[int] = field(default_factory=set)  #: ranks whose files are not there


def records(
    size: int,
    hosts: int = 4,
    calls: int = 32,
    planted: Planted | None = None,
    *,
    seed: int = 0,
    rails: int = 2,
    mesh: bool = True,
    error: int = CLOCK_ERROR,
    noise: int = NOISE,
) -> list[dict[str, Any]]:
    """Return what the ranks of a job write, by rank; ranks without files are left out."""
    planted = planted or Planted()
    chance = random.Random(f"{seed} {size} {hosts}")
    per_host = -(-size // min(hosts, size))
    host = [rank // per_host for rank in range(size)]
    skew = [SKEW + chance.randrange(-SKEW // 2, SKEW // 2) for _ in range(size)]
    events: list[list[dict[str, Any]]] = [[] for _ in range(size)]
    now = 5 * SECOND
    for seq in range(calls):
        now = _call(seq, now, events, planted, chance, noise, calls, rails)
    written = _end(calls, now, events, planted, chance)
    found = []
    for rank in range(size):
        if rank in planted.lacking | planted.dead:
            continue
        mine = skew[host[rank]]
        for event in events[rank]:
            for name in ("entered_ns", "finished_ns"):
                if event[name] is not None:
                    event[name] += mine
        reason = "SIGUSR1"
        if events[rank][-1]["error"]:
            reason = f"{events[rank][-1]['error']}: rank {rank} says why"
        found.append(
            {
                "format": "pycoll-record-1",
                "version": "0.1.0",
                "job": JOB,
                "reason": reason,
                "host": f"node{host[rank]}",
                "pid": 1000 + rank,
                "rank": rank,
                "size": size,
                "clock": {
                    "monotonic_ns": written[rank] + mine,
                    "unix_ns": 1_800_000_000 * SECOND + written[rank] + host[rank] * 3 * MS,
                    "reference": 0,
                    "offset_ns": skew[0] - mine + chance.randrange(-error // 2, error // 2 + 1),
                    "error_ns": error,
                },
                "comms": [
                    {
                        "name": "world",
                        "id": COMM,
                        "rank": rank,
                        "ranks": list(range(size)),
                        "hosts": host,
                        "transport": "verbs",
                        "rails": [f"mlx5_{i}:1" for i in range(rails)],
                        "events": events[rank][-1024:],
                        "links": _links(rank, host, planted, chance, rails, mesh),
                    }
                ],
            }
        )
    return found


def _call(
    seq: int,
    now: int,
    events: list[list[dict[str, Any]]],
    planted: Planted,
    chance: random.Random,
    noise: int,
    calls: int,
    rails: int,
) -> int:
    """Add a call that all ranks make; return when it is over."""
    size = len(events)
    call, algorithm, nbytes, dtype, op = CALLS[seq % len(CALLS)]
    arrived = []
    for rank in range(size):
        delay = planted.late.get(rank, 0)
        once = planted.once.get(rank)
        if once and once[0] == seq:
            delay += once[1]
        arrived.append(now + MS + int(chance.expovariate(1 / noise) if noise else 0) + delay)
    last = max(range(size), key=arrived.__getitem__)
    over = arrived[last] + 50_000 + int(nbytes / RATE)
    for rank in range(size):
        waited = arrived[last] - arrived[rank]
        finished = over + chance.randrange(5_000)
        # The last of a barrier finds all others there: it never waits, so nobody took the time.
        short = call == "barrier" and rank == last
        event = {
            "seq": seq,
            "call": call,
            "algorithm": algorithm,
            "nbytes": nbytes,
            "dtype": dtype,
            "op": op,
            "device": "cpu",
            "line": f"{LINE}:{41 + seq % len(CALLS)}",
            "entered_ns": None if short else arrived[rank],
            "finished_ns": arrived[rank] + 500 if short else finished,
            "waited_ns": waited,
            "waits": int(waited > 0),
            "peer": last if waited else None,
            "error": "",
            "sent": [nbytes // rails] * rails if nbytes and not short else [],
        }
        if rank in planted.other and seq == calls // 2:
            event.update(planted.other[rank])
        events[rank].append(event)
    return over + 5_000


def _end(
    calls: int,
    now: int,
    events: list[list[dict[str, Any]]],
    planted: Planted,
    chance: random.Random,
) -> list[int]:
    """Add the call that is under way, or never ends; return when each rank's file is written."""
    size = len(events)
    absent = planted.stopped | planted.dead
    like = {**events[0][0], "seq": calls, "line": f"{LINE}:99", "sent": []}
    if not absent:
        # SIGUSR1 comes at any moment: some ranks are in the next call, and some not yet.
        written = []
        for rank in range(size):
            written.append(now + MS + chance.randrange(MS))
            if chance.random() < 0.5:
                entered = now + chance.randrange(MS)
                new = {"entered_ns": entered, "finished_ns": None, "waited_ns": 0, "peer": None}
                events[rank].append({**like, **new})
        return written
    for rank in range(size):
        if rank in absent:
            continue
        entered = now + MS + int(chance.expovariate(1 / NOISE))
        new = {"entered_ns": entered, "finished_ns": None, "peer": min(absent), "waits": 3}
        if planted.dead:
            new |= {"finished_ns": entered + 200 * MS, "error": "PeerLostError"}
            new["waited_ns"] = 200 * MS
        events[rank].append({**like, **new})
    return [now + 20 * SECOND + chance.randrange(SECOND // 10) for _ in range(size)]


def _links(
    rank: int,
    host: list[int],
    planted: Planted,
    chance: random.Random,
    rails: int,
    mesh: bool,
) -> list[dict[str, int]]:
    size, found = len(host), []
    for peer in range(size) if mesh else sorted({(rank - 1) % size, (rank + 1) % size}):
        if host[peer] == host[rank]:
            continue
        for rail in range(rails):
            rate = RATE * chance.uniform(0.93, 1.07) * planted.slow.get((rank, peer, rail), 1.0)
            sent = chance.randrange(64 << 20, 128 << 20)
            found.append({"peer": peer, "rail": rail, "sent": sent, "busy_ns": int(sent / rate)})
    if found and rank % 3 == 0:  # what has hardly been used says nothing of its rate
        found[0] = {**found[0], "sent": 1000, "busy_ns": 90_000} if not planted.slow else found[0]
    return found


def save(folder: Path, made: Iterable[dict[str, Any]]) -> list[Path]:
    """Write the files as ranks name them."""
    paths = []
    for record in made:
        paths.append(folder / f"pycoll-record.{record['job']}.{record['rank']}.json")
        paths[-1].write_text(json.dumps(record))
    return paths
