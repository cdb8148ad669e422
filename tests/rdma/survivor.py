"""A rank of a job in which some die, or are cut off: those who live shrink, and go on.

    survivor.py STORY [grow]    lives a story of fates.py, in JSON; then as many newcomers come in
                                as have died
    survivor.py join            is such a newcomer
    survivor.py cut             calls until a rank is lost

Of a story it writes "dies" and "goes on" with the time, which all hosts of a guest have in common;
and in the end a line of JSON: the ranks that are left, and how many times it shrank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "faults"))

import fates
import numpy as np

import pycoll


def say(text: str) -> None:
    """Write a line at once, as this rank may die behind it."""
    os.write(1, f"{text}\n".encode())


def told(text: str) -> fates.Story:
    """Read a story."""
    story = fates.Story(*json.loads(text))
    ends = {int(rank): fates.Fate(*fate) for rank, fate in story.fates.items()}
    return story._replace(fates=ends)


def check(comm: pycoll.Communicator) -> None:
    """Sum arrays of several lengths; every rank knows the result."""
    for count in (1, 1000, 300_000):
        x: Any = np.arange(count) % 251 * float(comm.rank + 1)
        want = np.arange(count) % 251 * float(sum(range(comm.size + 1)))
        assert np.array_equal(comm.allreduce(x), want), count


def newcomer() -> None:
    """Come into a job."""
    with pycoll.join() as comm:
        check(comm)


def cut() -> None:
    """Call until a rank is lost, and shrink; say how many are left, or that this one is out."""
    comm = pycoll.init()
    check(comm)
    say("runs")
    try:
        while True:
            comm.allreduce(np.ones(1000))
    except (pycoll.PeerLostError, pycoll.BrokenError, pycoll.RevokedError) as error:
        say(f"{type(error).__name__}: {error}")
    try:
        comm = comm.shrink()
    except (pycoll.LostError, pycoll.UnavailableError) as error:
        say(f"{type(error).__name__}: {error}")
    else:
        check(comm)
        say(f"goes on as {comm.rank} of {comm.size}")


def survivor(story: fates.Story, grow: bool) -> None:
    """Live a story."""
    comm = pycoll.init()
    assert comm.transport == "verbs"
    outcome = fates.live(comm, story, lambda what: say(f"{what} {time.monotonic()}"))
    if grow:
        check(outcome.comm.grow(len(story.fates)))
    say(json.dumps([outcome.members, outcome.shrunk]))


if __name__ == "__main__":
    if sys.argv[1] == "join":
        newcomer()
    elif sys.argv[1] == "cut":
        cut()
    else:
        survivor(told(sys.argv[1]), sys.argv[2:] == ["grow"])
