"""Rehearsal: a process makes each call once, alone, for the ranks that will be copies of it.

What a first call of Python's writes to (code that the interpreter adapts to what it sees, caches of
classes, numpy's tables) is then written once, in pages that all copies share; of a thousand ranks
each would have its own, a megabyte of them.
"""

from __future__ import annotations

import numpy as np

from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.communicator import Communicator
from pycoll.config import Config
from pycoll.runtime.engine import Engine


def rehearse() -> None:
    """Make each collective once in a communicator of one rank, whatever this process is part of."""
    config = Config()  # nothing of the environment: this is no rank of a job
    alone = Bootstrap("single", Star(0, 1, (Member.me(),)), config.timeout)
    x = np.ones(8, np.float32)
    with Communicator(Engine(alone, config)) as comm:
        comm.barrier()
        for call in (
            *(comm.allreduce, comm.broadcast, comm.reduce, comm.allgather, comm.reduce_scatter),
            *(comm.alltoall, comm.gather, comm.scatter),
        ):
            call(x)
