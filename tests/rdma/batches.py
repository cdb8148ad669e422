"""A rank that makes calls on arrays of many lengths with the others, as often as it is told.

    batches.py allreduce|broadcast LENGTH...

It checks each result; what is broadcast comes from rank 0. The lengths are used in turns. For each
line of its standard input, which holds a number, the rank makes so many calls; the ranks must be
told alike. It writes "call N" before each, and after the last a line of JSON with the state of its
paths. At the end of the input it leaves. When a call fails it writes a last line of JSON with
`error`, `text` and that state, and ends with 3.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import pycoll
from pycoll.runtime.native import verbs

COLLECTIVE = sys.argv[1]
LENGTHS = [int(length) for length in sys.argv[2:]]


def call(comm: pycoll.Communicator, number: int) -> None:
    """Sum or broadcast random data, other data in each call; every rank knows the result."""
    draw = np.random.default_rng(number)
    parts = draw.integers(-999, 1000, (comm.size, LENGTHS[number % len(LENGTHS)]), dtype=np.int32)
    want = parts.sum(axis=0, dtype=np.int32) if COLLECTIVE == "allreduce" else parts[0]
    out = ~want  # no element is right by chance
    if COLLECTIVE == "allreduce":
        comm.allreduce(parts[comm.rank], out)
    else:
        out = parts[0].copy() if comm.rank == 0 else out
        comm.broadcast(out)
    assert np.array_equal(out, want), f"call {number}: {np.count_nonzero(out != want)} are wrong"


def serve(comm: pycoll.Communicator) -> None:
    """Make as many calls as each line says."""
    number = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            print(f"call {number}", flush=True)
            call(comm, number)
            number += 1
        print(json.dumps(state(comm)), flush=True)


def state(comm: pycoll.Communicator) -> dict[str, Any]:
    """Return that of the rank's paths."""
    return verbs.comm_net_state(comm._engine.comm)._asdict()


def main() -> None:
    """Do as told."""
    with pycoll.init() as comm:
        try:
            serve(comm)
        except pycoll.PycollError as error:
            said = {"error": type(error).__name__, "text": str(error), **state(comm)}
            print(json.dumps(said), flush=True)
            sys.exit(3)


if __name__ == "__main__":
    main()
