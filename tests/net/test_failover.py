"""A rank whose control router is gone turns to a machine that vanishes once it is reached."""

from __future__ import annotations

import subprocess
import sys

from hosts import Hosts

SECONDS = 60  #: generous: reached only by a hang
LISTEN = """
import socket, sys
with socket.create_server(("", 5000)):
    print("listening", flush=True)
    sys.stdin.read()
"""
#: Rank 2 of 3 on this host; rank 1 is at argv[1], and lets the kernel answer for it.
SEEK = """
import math, selectors, sys, time
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.bootstrap.failover import Failover

def say(*words):
    print(*words, flush=True)

hosts = ("gone", "", 0), ("there", sys.argv[1], 5000), ("here", "", 0)
members = tuple(Member(rank + 1, 0, *host) for rank, host in enumerate(hosts))
with selectors.DefaultSelector() as selector:
    over = []
    failover = Failover(
        Star(2, 3, members, secret=b"s"),
        selector,
        3.0,
        came=None,
        reached=None,
        preside=lambda: over.append(True),
        ended=lambda rank: say("ended", rank),
        unreachable=lambda rank: say("unreachable", rank),
        hung_up=lambda rank: say("hung up", rank),
    )
    failover.exclude(0)
    failover.seek()
    reached = False
    while not over:
        due = failover.due() - time.monotonic()
        for key, events in selector.select(None if due == math.inf else max(0.0, due)):
            failover.handle(key.fileobj, events)
        if not reached and failover.seeking and failover._caller.connected():
            reached = True
            say("reached")
        failover.expire(time.monotonic())
    say("presides")
"""


def test_a_machine_that_vanishes_once_it_is_reached_is_passed_by() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Hosts(2) as hosts, hosts.run(1, [sys.executable, "-c", LISTEN], **pipes) as there:
        assert there.stdout is not None
        assert there.stdout.readline() == "listening\n"
        with hosts.run(0, [sys.executable, "-c", SEEK, hosts.address(1)], **pipes) as here:
            try:
                assert here.stdout is not None
                assert here.stdout.readline() == "reached\n"
                hosts.cut(1)
                out, _ = here.communicate(timeout=SECONDS)
                assert out == "unreachable 1\npresides\n"
            finally:
                here.kill()
