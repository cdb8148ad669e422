"""Job: what a process that `pycoll.spawn` started knows of its place."""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

from pycoll.bootstrap import rendezvous
from pycoll.bootstrap.rendezvous import Star
from pycoll.config import Config


class Job(NamedTuple):
    """A spawned process's place in its job."""

    rank: int
    size: int
    port: int  #: on loopback
    secret: bytes
    #: Rank 0's, made before any process: nobody can come too early.
    listener: socket.socket | None

    def __repr__(self) -> str:
        return f"<Job rank {self.rank} of {self.size}>"  # a traceback may print it, not the secret


_job: Job | None = None


def current() -> Job | None:
    """Return this process's job, or None if `pycoll.spawn` did not start it."""
    return _job


def enter(job: Job) -> None:
    """Make this process a rank of `job`."""
    global _job
    _job = job


def meet(config: Config) -> Star:
    """Meet the other ranks of this process's job."""
    assert _job is not None
    deadline = time.monotonic() + config.timeout
    if _job.listener:
        return rendezvous.gather(_job.listener, _job.size, _job.secret, deadline)
    address = [("127.0.0.1", _job.port)]
    return rendezvous.join(address, _job.rank, _job.size, _job.secret, deadline)


def _forget() -> None:
    global _job
    _job = None


# A process that a rank forks is not that rank.
os.register_at_fork(after_in_child=_forget)
