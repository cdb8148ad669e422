"""One rank of a job that shrinks whenever it breaks, until it is told to stop.

`ready` once it has met the others. `stop` as input of the rank that is the first ends the loop on
all that are left. At the end `done` and the ranks that are left, as JSON; or `LostError` and why;
then `left N` descriptors and threads, more than at the start.
"""

from __future__ import annotations

import faulthandler
import json
import select
import sys

import numpy as np
from job import held, left, say

import pycoll

PATIENCE = 80  #: seconds after which a rank that still runs shows where it is


def part(rank: int, call: int) -> np.ndarray:
    """What a rank adds in a call."""
    return np.random.default_rng([rank, call]).integers(-1000, 1000, 1000).astype(float)


def work(comm: pycoll.Communicator, me: int) -> list[int]:
    """Call and check; return who is left once somebody says stop."""
    members = [int(rank) for rank in comm.allgather(np.array([float(me)]))]
    call, stop = 0, False
    while not stop:
        stop = comm.rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        x = np.append(part(me, call), float(stop))
        comm.allreduce(x)
        want = sum(part(member, call) for member in members)
        assert np.array_equal(x[:-1], want), f"call {call} of {members}: wrong sum"
        call, stop = call + 1, bool(x[-1])
    return members


def main() -> None:
    faulthandler.dump_traceback_later(PATIENCE)
    before = held()
    comm = pycoll.init()
    open_, me = [comm], comm.rank
    say("ready")
    while True:
        try:
            say("done", json.dumps(work(open_[-1], me)))
            break
        except (pycoll.PeerLostError, pycoll.BrokenError, pycoll.CollectiveTimeout):
            try:
                open_.append(open_[-1].shrink())
            except pycoll.LostError as error:
                say("LostError", str(error).replace("\n", " "))
                break
    for one in open_:
        one.close()
    del one, comm, open_
    say("left", left(before))


if __name__ == "__main__":
    main()
