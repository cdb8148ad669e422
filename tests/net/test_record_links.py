"""Links in records: what each connection to another host has carried, and how slow it was at it."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from hosts import Hosts

Record = dict[str, Any]

SENT = """
import json, sys, numpy as np, pycoll
comm = pycoll.init()
peer = (comm.rank + 1) % comm.size
comm.barrier()
made = [comm.record()]
for _ in range(2):
    if comm.rank == 0:
        comm.send(np.ones(100_000, "uint8"), 1)
    elif comm.rank == 1:
        comm.recv(np.empty(100_000, "uint8"), 0)
    comm.barrier()
    comm.barrier()
    made.append(comm.record())
comm.allreduce(np.ones(50_000), algorithm="ring")
comm.barrier()
comm.barrier()
made.append(comm.record())
print(json.dumps(made), flush=True)
comm.barrier()
"""

SLOW = """
import json, numpy as np, pycoll
comm = pycoll.init()
comm.barrier()
for _ in range(3):
    comm.alltoall(np.ones(comm.size * 50_000, "uint8"))
comm.barrier()
print(json.dumps([comm.record()]), flush=True)
comm.barrier()
"""


def run(root: Path, hosts: Hosts, count: int, program: str) -> list[list[Record]]:
    """The records that each rank made, one rank on each host."""
    running = [
        hosts.run(
            rank,
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": str(root),
                "PYCOLL_RANK": str(rank),
                "PYCOLL_SIZE": str(count),
                "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                "PYCOLL_SECRET": "ab" * 16,
            },
            stdout=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * count
    return [json.loads(text) for text in said]


def links(made: Record) -> dict[int, dict[str, int]]:
    """What has been carried to each peer, by all connections together."""
    found: dict[int, dict[str, int]] = {}
    for link in made["comms"][0]["links"]:
        total = found.setdefault(link["peer"], {"sent": 0, "busy_ns": 0})
        total["sent"] += link["sent"]
        total["busy_ns"] += link["busy_ns"]
    return found


def test_links_count_what_was_sent(root: Path) -> None:
    with Hosts(3) as hosts:
        found = run(root, hosts, 3, SENT)
    for rank, records in enumerate(found):
        for made in records:
            (one,) = made["comms"]
            assert one["hosts"] == [0, 1, 2]
            assert one["transport"] == "tcp"
            assert one["rails"] == ["tcp"]
            assert {link["peer"] for link in one["links"]} <= {0, 1, 2} - {rank}
        for before, after in itertools.pairwise(records):
            for peer, link in links(before).items():
                assert links(after)[peer]["sent"] >= link["sent"]
                assert links(after)[peer]["busy_ns"] >= link["busy_ns"]

    def grown(rank: int, peer: int, at: int) -> int:
        before = links(found[rank][at - 1]).get(peer, {"sent": 0})
        return links(found[rank][at])[peer]["sent"] - before["sent"]

    for at in (1, 2):
        assert 100_000 <= grown(0, 1, at) < 120_000
        for rank, peer in ((0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
            if peer in links(found[rank][at]):
                assert grown(rank, peer, at) < 20_000
    for rank in range(3):
        # A ring sends two thirds of the array twice over to the next rank.
        events = found[rank][3]["comms"][0]["events"]
        (event,) = (event for event in events if event["algorithm"] == "ring")
        (sent,) = event["sent"]
        assert sent >= 2 * 2 / 3 * 400_000 * 0.99
        assert grown(rank, (rank + 1) % 3, 3) >= sent * 0.99
        assert links(found[rank][3])[(rank + 1) % 3]["busy_ns"] > 0


def test_the_links_of_a_host_whose_wire_is_slow_are_told_from_the_rest(root: Path) -> None:
    # Twenty times slower, as a loaded machine slows the other wires, too, which are processes.
    count, slow = 4, 2
    with Hosts(count) as hosts:
        for host in range(count):
            hosts.shape(host, rate=0.1e6 if host == slow else 2e6)
        found = run(root, hosts, count, SLOW)
    rates: dict[tuple[int, int], float] = {}
    for rank, (made,) in enumerate(found):
        for peer, link in links(made).items():
            assert link["sent"] > 150_000
            rates[rank, peer] = link["sent"] / link["busy_ns"]
    assert len(rates) == count * (count - 1)
    rest = statistics.median(rate for ends, rate in rates.items() if slow not in ends)
    for ends, rate in rates.items():
        if slow in ends:
            assert rate < 0.6 * rest, (ends, rates)


def test_ranks_of_one_host_have_no_links(root: Path) -> None:
    with Hosts(1) as hosts:
        running = [
            hosts.run(
                0,
                [sys.executable, "-c", SLOW],
                env={
                    **os.environ,
                    "PYTHONPATH": str(root),
                    "PYCOLL_RANK": str(rank),
                    "PYCOLL_SIZE": "2",
                    "PYCOLL_ADDRESS": f"{hosts.address(0)}:29400",
                    "PYCOLL_SECRET": "ab" * 16,
                },
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        for process in running:
            (made,) = json.loads(process.communicate(timeout=120)[0])
            assert (made["comms"][0]["rails"], made["comms"][0]["links"]) == ([], [])
