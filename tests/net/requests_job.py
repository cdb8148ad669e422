"""One rank of a job that says, as JSON, how many work requests its messages take.

    requests_job.py MESSAGES

Of that many all-reduces of each length, and of that many messages each way; and of STREAM short
broadcasts, which go one way. See test_rails.py.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import pycoll
from pycoll.runtime.native import verbs

STREAM = 64  #: calls
LENGTHS = (8, 40, 64, 512, 4096, 65536, 262144)  #: bytes; the last fills the longest message


def main() -> None:
    times = int(sys.argv[1])
    with pycoll.init() as comm:

        def posted() -> tuple[int, int]:
            state = verbs.comm_net_state(comm._engine.comm)
            return state.requests - state.credits, state.credits

        def reduce(x: np.ndarray, out: np.ndarray) -> None:
            comm.allreduce(x, out, algorithm="one_shot")

        def exchange(x: np.ndarray, out: np.ndarray) -> None:
            if comm.rank == 0:
                comm.send(x, to=1)
                comm.recv(out, frm=1)
            else:
                comm.recv(out, frm=0)
                comm.send(x, to=0)

        said = {}
        for call in (reduce, exchange):
            for nbytes in LENGTHS:
                x, out = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
                call(x, out)
                before = posted()
                for _ in range(times):
                    call(x, out)
                said[f"{call.__name__} {nbytes}"] = [
                    now - then for now, then in zip(posted(), before, strict=True)
                ]
                assert (out == (2 if call is reduce else 1)).all()
        before = posted()
        for _ in range(STREAM):
            comm.broadcast(np.ones(8, np.uint8))
        said["stream 8"] = [now - then for now, then in zip(posted(), before, strict=True)]
        comm.barrier()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
