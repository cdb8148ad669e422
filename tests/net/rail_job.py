"""One rank of a job that says, as JSON by line, how it reaches the others; see test_rails.py.

First `transport`, `plan`, `group`, `heard` (warnings) and `where` (they point at), or `error` and
`text`. Then for each line of input the state of the way to remote ranks, until the input ends.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np

import pycoll
from pycoll.runtime.native import verbs


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def check(comm: pycoll.Communicator, count: int) -> None:
    x = np.arange(count) * (comm.rank + 1.0)
    comm.allreduce(x)
    assert np.array_equal(x, np.arange(count) * sum(range(1, comm.size + 1))), "wrong sum"


def main() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pycoll.init() as comm:
            for count in (3, 100_000):
                check(comm, count)
            group = comm.dup()
            check(group, 10)
            say(
                transport=comm.transport,
                plan=comm.plan("allreduce", np.ones(3), algorithm="ring").transport,
                group=group.transport,
                heard=[str(one.message) for one in heard],
                where=[one.filename for one in heard],
            )
            for _ in sys.stdin:
                say(**verbs.comm_net_state(comm._engine.comm)._asdict())
            check(comm, 1000)
            group.close()


if __name__ == "__main__":
    try:
        main()
    except pycoll.PycollError as error:
        say(error=type(error).__name__, text=str(error))
