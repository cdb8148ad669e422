"""A job in which ranks die at given moments: those who live shrink, and go on with right results.

Every rank runs `live`, whatever carries its messages and whoever has started it.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pycoll

CALLS = 12  #: of a communicator before it may be the last
TRANSPORTS = ("shm", "tcp", "mixed")  #: that a seed draws from


class Fate(NamedTuple):
    """How one rank ends."""

    when: str  #: "call", "shrink" or "behind"
    call: int  #: of the communicator: the one in which it ends, or so many behind a shrink
    delay: float  #: seconds from then on


class Story(NamedTuple):
    """Who is in a job, what it calls, and who dies when."""

    size: int
    transport: str  #: "shm", "tcp", "mixed" or, in a guest, "verbs"
    how: str  #: "init", "dup" or "split": what the communicator is
    elements: int  #: of the messages
    fates: dict[int, Fate]

    @classmethod
    def of(cls, seed: int) -> Story:
        """Return what a seed stands for."""
        draw = random.Random(seed)
        size = draw.randint(3, 8)
        victims = draw.sample(range(size), draw.randint(1, min(3, size - 1)))
        together = draw.random() < 0.5  # all in the same call
        call = draw.randrange(CALLS)
        fates = {}
        for victim in victims:
            when = "call" if victim == victims[0] else draw.choice(["call", "shrink", "behind"])
            nth = call if together else draw.randrange(CALLS)
            fates[victim] = Fate(when, nth, draw.random() ** 3 * 0.03)
        how = draw.choice(["init", "dup", "split"])
        elements = draw.choice([1, 1000, 100_000])
        return cls(size, draw.choice(TRANSPORTS), how, elements, fates)


class Outcome(NamedTuple):
    """What became of a rank that lives."""

    comm: pycoll.Communicator  #: in the end
    members: list[int]  #: its ranks, as the job numbers them
    shrunk: int  #: how many times


def part(rank: int, call: int, elements: int) -> Any:
    """Return what a rank gives to a call."""
    return np.random.default_rng([rank, call]).integers(-1000, 1000, elements).astype(np.float64)


def die(delay: float, says: Callable[[str], object]) -> None:
    """Be killed so many seconds from now, whatever this rank does then."""

    def end() -> None:
        time.sleep(delay)
        says("dies")
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()


def live(
    comm: pycoll.Communicator, story: Story, says: Callable[[str], object] = lambda what: None
) -> Outcome:
    """Be one rank.

    Args:
        comm: Of the whole job.
        story: The same on all ranks.
        says: Is told "dies" right before this rank does, and "goes on" after the first right result
            of each communicator that it has shrunk to.
    """
    me, kept = comm.rank, list[tuple[Any, int]]()
    fate = story.fates.get(me)
    if story.how == "dup":
        comm = comm.dup()
    elif story.how == "split":
        comm = comm.split(0, -me)  # the last rank is the first
    members = [story.size - 1 - r if story.how == "split" else r for r in range(story.size)]
    shrunk, left = 0, story.size - len(story.fates)
    while True:
        try:
            if shrunk:
                members = [int(r) for r in comm.allgather(np.array([float(me)]))]
                assert members[comm.rank] == me, f"{members}: rank {comm.rank} is {me}"
            call = 0
            while call < CALLS or comm.size > left:
                if fate and fate.call == call and (shrunk or fate.when == "call"):
                    die(fate.delay, says)
                given = comm.empty(story.elements)
                given[:] = part(me, call, story.elements)
                if not shrunk:
                    kept = [(given, call)]
                total = comm.allreduce(given, comm.empty(story.elements))
                want = sum(part(member, call, story.elements) for member in members)
                assert np.array_equal(total, want), f"call {call} of {members}"
                if shrunk and not call:
                    says("goes on")
                call += 1
            comm.barrier()
            for array, of_call in kept:  # memory of those that broke
                assert np.array_equal(array, part(me, of_call, story.elements)), (
                    f"kept {of_call}: {array}"
                )
            return Outcome(comm, members, shrunk)
        except (pycoll.PeerLostError, pycoll.BrokenError, pycoll.RevokedError):
            if fate and fate.when == "shrink":
                die(fate.delay, says)
            comm = comm.shrink()
            shrunk += 1
