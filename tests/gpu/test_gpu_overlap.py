"""overlap with a communicator: ranks as threads, a collective on the stand-in's GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fakecuda
import pytest

sys.path.append(str(Path(__file__).parent))

import kernels
import together

from pycoll import overlap
from pycoll.runtime.native import cuda

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]


def test_all_ranks_measure_alike() -> None:
    from device import Pool

    kernels.take_any()

    def rank(comm: Any) -> overlap.Measured:
        pool = Pool(0, 1 << 20)
        x, y = pool.empty(1000).fill(0), pool.empty(1000)
        comm.cuda(0)

        def collective(stream: Any) -> None:
            with comm.on_stream(stream):
                comm.allreduce(x)

        def compute(stream: Any) -> None:
            cuda.fill(0, y.address, 1, y.nbytes, stream.ptr)

        comm.plan("allreduce", x)  # nothing is loaded beside a kernel that waits for this rank
        comm.barrier()
        return overlap.measure(compute, collective, compute, comm=comm, repeats=2)

    one, other = together.spawn(rank, 2)
    assert one == other, "the slowest rank's times are everybody's"
    assert list(one.ways) == ["sequential", "concurrent", "priority", "shaped", "both"]


def test_a_plan_reckons_with_the_communicators_own_blocks() -> None:
    kernels.take_any()

    def rank(comm: Any) -> tuple[Any, overlap.Advice]:
        import numpy as np
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.allreduce(pool.array(np.ones(10, np.float32)))  # a kernel is loaded
        cuda.stream_wait(0, pool.stream)
        module = cuda.module(0, fakecuda.image(work={"registers": 32, "threads": 1024}))
        advice = overlap.plan(cuda.function(0, module, "work"), 1024, comm)
        return comm.cuda(), advice

    own, advice = together.spawn(rank, 1)[0]
    assert own.registers > 0
    beside = overlap.Footprint(own.threads, own.registers, own.shared_bytes)
    work = overlap.Footprint(1024, 32)
    from pycoll.overlap.advice import advise
    from pycoll.overlap.limits import limits

    assert advice == advise(work, beside, limits((9, 0)))
    assert advice.natural == 2
