"""A rank that is killed amid calls, as the others see it."""

from __future__ import annotations

import os
import signal

import fakecuda
import gpus
import numpy as np

import pycoll
from pycoll import PeerLostError

CALL = 20  #: the call before which it is


def until_one_is_killed(comm: pycoll.Communicator, victim: int) -> PeerLostError:
    """Sum arrays on GPUs until a rank is gone; return what this one is told.

    Raises:
        AssertionError: It never is.
    """
    stream, x = fakecuda.Stream(), gpus.of(np.ones(100_000, "f4"))
    for call in range(1_000_000):
        if comm.rank == victim and call == CALL:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with comm.on_stream(stream):
                comm.allreduce(x, async_op=True).synchronize()
        except PeerLostError as error:
            return error
    raise AssertionError(f"rank {victim} lives")
