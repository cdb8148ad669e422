"""A communicator of GPUs grows: the newcomer's takes part, and the old ranks' go on."""

from __future__ import annotations

import multiprocessing
from typing import Any

import fakecuda
import gpus
import numpy as np
import ports

import pycoll
from pycoll import Communicator

pytestmark = gpus.MARKS
FORK = multiprocessing.get_context("fork")


def total(comm: Communicator) -> list[float]:
    """All-reduce an array in the memory of this rank's GPU."""
    x = gpus.of(np.arange(3) * (comm.rank + 1.0))
    comm.allreduce(x)
    fakecuda.cu("cuCtxSynchronize")
    found: list[float] = x.host.tolist()
    return found


def test_a_newcomer_has_a_gpu() -> None:
    address = f"127.0.0.1:{ports.free()}"

    def come(writer: Any) -> None:
        gpus.use()
        with pycoll.join(address, timeout=60) as comm:
            writer.send(total(comm))

    def rank() -> tuple[list[float], list[float]]:
        with pycoll.init(timeout=60) as comm:
            before = total(comm)
            with comm.grow(1, address) as larger:
                after = total(larger)
            assert total(comm) == before
            return before, after

    fakecuda.library()
    reader, writer = FORK.Pipe(duplex=False)
    newcomer = FORK.Process(target=come, args=(writer,))
    newcomer.start()
    try:
        assert gpus.ranks(2, rank) == [([0.0, 3.0, 6.0], [0.0, 6.0, 12.0])] * 2
        assert reader.recv() == [0.0, 6.0, 12.0]
    finally:
        newcomer.kill()
        newcomer.join()
