"""Rehearsal: a process makes each call once, alone, for the ranks that will be copies of it.

A first call writes to the interpreter's memory: to code that it adapts to what it sees, to caches
of classes, to tables of numpy. After a rehearsal all copies share the pages that were written; each
of a thousand ranks would have copied a megabyte of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pycoll import log
from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import Star
from pycoll.communicator import Communicator
from pycoll.config import Config
from pycoll.runtime.engine import Engine
from pycoll.runtime.plan.agreement import Agreement


def rehearse() -> None:
    """Make each collective once in a communicator of one rank, whatever this process is part of.

    It reads no settings, says nothing to `logging` and keeps nothing on disk.
    """
    config = Config(cache=Path(os.devnull))
    alone = Bootstrap("single", Star(0, 1, (Member.me(),)), config.timeout)
    x = np.ones(8, np.float32)
    with log.silent(), Communicator(Engine(alone, config, agreement=Agreement())) as comm:
        comm.barrier()
        for call in (
            *(comm.allreduce, comm.broadcast, comm.reduce, comm.allgather, comm.reduce_scatter),
            *(comm.alltoall, comm.gather, comm.scatter),
        ):
            call(x)
