"""One rank of a job that calls and checks until it is told to stop; says what happens, by line.

`ready` once it has met the others; then, where its first argument is `hold`, it waits for a line
of input. `calls N` every ten calls (rank 0). `stop` as input of rank 0 ends the loop on all ranks.
At the end `done N`, or the error's name and text; then `left N` descriptors and threads, more than
at the start.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import select
import sys
import time

import numpy as np

import pycoll

PATIENCE = 50  #: seconds after which a rank that still runs shows where it is
LIMIT = 200_000  #: calls, should nobody say stop
COUNTS = (2, 1000, 40_000, 7)


def held() -> int:
    """Count this process's descriptors and threads."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def left(before: int) -> int:
    """Count what is held more than before."""
    deadline = time.monotonic() + 20
    while held() > before and time.monotonic() < deadline:
        pass  # a thread that has been joined may still be listed for a moment
    return held() - before


def say(*words: object) -> None:
    print(*words, flush=True)


def data(rank: int, call: int) -> np.ndarray:
    """What a rank adds in a call."""
    return np.arange(COUNTS[call % len(COUNTS)]) * (rank + 1) % 251 + float(call)


def work(comm: pycoll.Communicator) -> int:
    """Call and check; returns how often."""
    for call in range(LIMIT):
        told = comm.rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        x, want = data(comm.rank, call), sum(data(r, call) for r in range(comm.size))
        x[0], want[0] = told, 0
        comm.allreduce(x)
        stop, x[0] = bool(x[0]), 0
        assert np.array_equal(x, want), f"call {call}: wrong sum"
        if call % 3 == 0:
            every = comm.allgather(data(comm.rank, call)[:1000])
            want = np.concatenate([data(r, call)[:1000] for r in range(comm.size)])
            assert np.array_equal(every, want), f"call {call}: wrong gathering"
        if comm.rank == 0 and call % 10 == 9:
            say("calls", call + 1)
        if stop:
            return call + 1
    raise AssertionError(f"nobody said stop in {LIMIT} calls")


def main() -> None:
    faulthandler.dump_traceback_later(PATIENCE)
    before = held()
    try:
        with pycoll.init() as comm:
            say("ready")
            if sys.argv[1:] == ["hold"]:
                sys.stdin.readline()
            calls = work(comm)
        say("done", calls)
    except pycoll.PycollError as error:
        say(type(error).__name__, str(error).replace("\n", " "))
    say("left", left(before))


if __name__ == "__main__":
    main()
