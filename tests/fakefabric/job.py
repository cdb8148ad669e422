"""Ranks that share no memory make every collective, and transfers of all lengths, by libfabric.

Prints what reached them. Arguments: the number of ranks, and what they do. ONE_RANK is the rank
that heeds the settings of the stand-in, if it is only one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import collective_checks
import fates
import numpy as np
import walk

import pycoll
from pycoll.bootstrap import job as jobs
from pycoll.runtime.native import verbs

LENGTHS = (0, 1, 40, 41, 1000, 2048, 16191, 16192, 16193, 100_000, 262_143, 262_144, 1_000_001)


def say(text: str) -> None:
    """Print a line in one piece: the ranks share the stream."""
    os.write(1, f"{text}\n".encode())


def transfers(comm: Any) -> None:
    """Send an array of each length round, all at once, and in pairs."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn, n in enumerate(LENGTHS * 2):
        x = (np.arange(n) * 7 + comm.rank + turn).astype(np.uint8)
        want = (np.arange(n) * 7 + before + turn).astype(np.uint8)
        got = np.zeros(n, np.uint8)
        work = comm.send(x, after, async_op=True)
        comm.recv(got, before)
        work.wait()
        assert np.array_equal(got, want), (turn, n)
        got[:] = 0
        comm.exchange([(x, after)], [(got, before)])
        assert np.array_equal(got, want), (turn, n)


def large(comm: Any) -> None:
    """Reduce 64 MiB."""
    x = np.full(1 << 23, comm.rank + 1.0)
    assert (comm.allreduce(x) == sum(range(1, comm.size + 1))).all()


def operations(comm: Any) -> None:
    """Print how many operations of the provider a message takes."""
    x = np.arange(100_000, dtype=np.uint8)
    comm.barrier()
    before = verbs.comm_net_state(comm._engine.comm).requests
    if comm.rank == 0:
        comm.send(x, 1)
        say(f"operations {verbs.comm_net_state(comm._engine.comm).requests - before}")
    else:
        assert np.array_equal(comm.recv(np.zeros_like(x), 0), x)
    comm.barrier()


def way(comm: Any) -> None:
    """Print which way a long transfer goes, by what its sender sends; and what is registered."""
    x = np.arange(1 << 20, dtype=np.uint8)
    comm.barrier()
    state = verbs.comm_net_state(comm._engine.comm)
    if comm.rank == 0:
        comm.send(x, 1)
        sent = verbs.comm_net_state(comm._engine.comm).bytes[0] - state.bytes[0]
        say(f"{'packets' if sent >= x.nbytes else 'reads'}, {state.regions} regions")
    else:
        assert np.array_equal(comm.recv(np.zeros_like(x), 0), x)
    comm.barrier()


def scarce(comm: Any) -> None:
    """Exchange long arrays, several at once, both ways; print how it ends."""
    other = 1 - comm.rank
    xs = [np.full(1 << 20, 10 * comm.rank + i, np.uint8) for i in range(3)]
    got = [np.zeros_like(x) for x in xs]
    began = time.monotonic()
    try:
        for _ in range(2):
            comm.exchange([(x, other) for x in xs], [(y, other) for y in got], timeout=20)
            assert all((y == 10 * other + i).all() for i, y in enumerate(got))
        say(f"rank {comm.rank}: right")
    except pycoll.PycollError as error:
        soon = time.monotonic() - began < 10
        say(f"rank {comm.rank}: {type(error).__name__}: {error}; {soon}")


def last(comm: Any) -> None:
    """Send to a rank that closes as soon as it has the message; one of each kind."""
    for n in (8, 10_000, 100_000):
        x = np.arange(n, dtype=np.uint8)
        with comm.dup() as copy:
            if comm.rank == 0:
                copy.send(x, 1)
            else:
                assert np.array_equal(copy.recv(np.zeros_like(x), 0), x)


def broken_off(comm: Any) -> None:
    """Break off a message that is being read, at either end; its memory is used for other things.

    Nothing may be read into it any more, nor of it. A pair beside them goes on.
    """
    with comm.split(comm.rank // 2) as pair:
        x = np.full(128 << 20, 1, np.uint8)
        try:
            for _ in range(100):  # a timeout counts from a sleep on: a message may come whole
                if comm.rank == 0:
                    pair.send(x, 1)
                elif comm.rank == 1:
                    pair.recv(x, 0, timeout=0.01)
                elif comm.rank == 2:
                    pair.send(x, 1, timeout=0.01)
                else:
                    pair.recv(x, 0)
            raise AssertionError("all messages came whole before the timeout")
        except pycoll.PycollError:
            x[:] = 7
        time.sleep(0.5)
        assert (x == 7).all()
    transfers(comm)


def late(comm: Any) -> None:
    """Receive what its sender has broken off before: its memory holds something else by then."""
    with comm.split(comm.rank // 2) as pair:
        x = np.full(1 << 20, 1, np.uint8)
        if pair.rank == 0:
            pair.send(x, 1)
            try:
                pair.send(x, 1, timeout=0.1)
                raise AssertionError("it was received before anybody asked for it")
            except pycoll.PycollError:
                x[:] = 7
        else:
            pair.recv(x, 0)
        comm.barrier()
        if pair.rank == 1:
            x[:] = 0
            try:
                pair.recv(x, 0, timeout=1)
                raise AssertionError("it came, though its sender was told that it did not")
            except pycoll.PycollError:
                pass
            assert (x == 0).all()
    transfers(comm)


def silent(comm: Any) -> None:
    """Send what is read from where it lies to a rank that makes no call once it has it."""
    x = np.ones(1 << 20, np.uint8)
    for turn in range(30):
        ended = Path(sys.argv[3]) / f"{turn}"
        comm.barrier()
        if comm.rank == 0:
            comm.send(x, 1)
            ended.touch()
            continue
        comm.recv(x, 0)
        until = time.monotonic() + 20
        while not ended.exists():
            assert time.monotonic() < until, "its sender waits for it to call again"
            time.sleep(0.001)


def abandoned(comm: Any) -> None:
    """Leave a collective, or never come to it, while its messages come in; and close."""
    x = np.ones(4 << 20)
    for late in (True, False) * 3:
        try:
            with comm.dup() as copy:
                for call in range(100):  # see broken_off
                    if comm.rank == 0 and not late and call == 1:
                        raise RuntimeError
                    copy.allreduce(x, timeout=0.01 if late and comm.rank == 0 else None)
            raise AssertionError("all calls ended before the timeout")
        except (pycoll.PycollError, RuntimeError):
            pass
    transfers(comm)


def forks(comm: Any) -> None:
    """Go on where a child was forked that closed what it had of the communicator."""
    large(comm)
    if (child := os.fork()) == 0:
        comm.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    transfers(comm)


def orphan(comm: Any) -> None:
    """Hear of a death that a child of the dead outlives."""
    comm.barrier()
    if comm.rank == 1:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        comm.allreduce(np.ones(1))
    except pycoll.PeerLostError as error:
        say(f"rank {comm.rank}: {error}; {time.monotonic() - began < 15}")


def deaths(comm: Any) -> None:
    """Live a story in which the ranks die that the third argument names, in the order they have."""
    first, *later = json.loads(sys.argv[3])
    ends = {first: fates.Fate("call", 3, 0.0)}
    ends |= {rank: fates.Fate("shrink", 0, 0.005) for rank in later}
    story = fates.Story(comm.size, "libfabric", "init", int(sys.argv[4]), ends)
    say(f"left {fates.live(comm, story).members}")


def cut(comm: Any) -> None:
    """Reduce until the network is cut, as the stand-in was told."""
    try:
        for call in range(100_000):
            x = np.full(1 + call % 7 * 1000, comm.rank + 1.0)
            assert (comm.allreduce(x) == sum(range(1, comm.size + 1))).all()
    except pycoll.PeerLostError as error:
        say(f"rank {comm.rank}: {error}")
        try:
            comm.barrier()
        except pycoll.BrokenError:
            say("and broken from then on")


def lied(comm: Any) -> None:
    """Reduce until a packet is found to be wrong, or lost for a wrong name; print why."""
    try:
        for call in range(100_000):
            comm.allreduce(np.full(1 + call % 7 * 1000, 1.0), timeout=3)
    except (pycoll.PycollError, OSError) as error:
        say(f"rank {comm.rank}: {type(error).__name__}: {error}")


def rank() -> str:
    """Be one rank."""
    mine = jobs.current()
    assert mine is not None
    if os.environ.get("ONE_RANK", str(mine.rank)) != str(mine.rank):
        for name in [name for name in os.environ if name.startswith("FAKEFABRIC_")]:
            del os.environ[name]  # it finds the stand-in as it is
    with walk.apart("libfabric", mine.rank):
        if sys.argv[2] == "collectives":
            collective_checks.main()
            return "libfabric"
        with pycoll.init(timeout=60) as comm:
            globals()[sys.argv[2]](comm)
            return comm.transport


if __name__ == "__main__":
    print(
        *pycoll.spawn(
            rank, int(sys.argv[1]), timeout=150, check=sys.argv[2] not in ("deaths", "orphan")
        )
    )
