"""One rank of a job that grows, as its first argument says; prints what its communicators give.

`member`: a rank from the start. `newcomer`: joins. The second argument says where. Whoever finds
itself to be rank 0 of a grown communicator dies, once, if the third says so; the others shrink, and
grow by another newcomer.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import pycoll


def total(comm: pycoll.Communicator) -> str:
    """All-reduce, and say who took part."""
    x = comm.allreduce(np.arange(50_000) * (comm.rank + 1.0))
    right = np.array_equal(x, np.arange(50_000) * sum(range(1, comm.size + 1)))
    transports = {*comm.allgather_object(comm.transport)}
    return f"rank {comm.rank} of {comm.size}: {'right' if right else 'wrong'} {transports}"


def main() -> None:
    how, address, fatal = sys.argv[1:]
    comm = pycoll.init() if how == "member" else pycoll.join(address)
    if how == "member":
        comm = comm.grow(1, address)
    print(total(comm), flush=True)
    if fatal == "fatal" and comm.size == 3:
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                comm.barrier()
        except pycoll.PycollError as error:
            print(type(error).__name__, flush=True)
        comm = comm.shrink().grow(2, address)
        print(total(comm), flush=True)
    elif fatal == "fatal":
        print("last", flush=True)
    comm.close()


main()
