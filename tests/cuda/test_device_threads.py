"""Ranks that are threads of one process and share a GPU, on the stand-in for libcuda.

Where memory or code comes or goes the driver may wait for kernels that run, and the stand-in always
does. A collective's kernel runs until the other thread has launched its own: so a thread that
allocates or loads before its launch waits for ever. docs/gpu.md says what to do first.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import fakecuda
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

import kernels
import together

import pycoll
from pycoll.runtime.native import cuda

pytestmark = pytest.mark.native

DTYPES = ("float32", "int32", "uint8")
COUNTS = (1, 5000, 700_000)  #: in one tile and in many


def _calls(
    comm: Any, seat: together.Seat, plans: bool, launched: threading.Event | None = None
) -> None:
    from device import Pool

    pool, stream = Pool(0, 64 << 20), cuda.stream(0)
    comm.cuda(0)
    arrays = [pool.array(np.full(n, comm.rank + 1, kind)) for kind in DTYPES for n in COUNTS]
    blocks = [pool.empty((comm.size, 1000), kind) for kind in DTYPES]
    if plans:
        for x in arrays:
            for name in ("ring", "double_binary_tree"):
                comm.plan("allreduce", x, op="max", algorithm=name)
        for x, out in zip(arrays[1::3], blocks, strict=True):
            comm.plan("allgather", pool_part(x), out)
        comm.barrier()
    seat.gather(0.0)
    with comm.on_stream(stream):
        if launched and comm.rank == 0:
            comm.allreduce(arrays[0], op="max", algorithm="ring")
            launched.set()
        elif launched:  # this rank comes to its first call while the other's kernel waits for it
            assert launched.wait(60)
            comm.allreduce(arrays[0], op="max", algorithm="ring")
        for x in arrays:
            for name in ("ring", "double_binary_tree"):
                comm.allreduce(x, op="max", algorithm=name)
        for x, out in zip(arrays[1::3], blocks, strict=True):
            comm.allgather(pool_part(x), out)
    cuda.stream_wait(0, stream)
    comm._collectives.launch.cuda.streams.open().check()
    for x in arrays:
        assert (x.get() == comm.size).all()
    for out in blocks:
        assert (out.get() == comm.size).all()


def pool_part(x: Any) -> Any:
    """Return the first elements of an array, as an array of the pool."""
    from device import Array

    return Array(x._pool, x.address, (1000,), x.kind)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.fake_cuda(patience=20)
def test_messages_need_no_plan(size: int) -> None:
    """The first one loads nothing: its kernel came with `comm.cuda()`."""
    kernels.take_any()
    met = together.Meeting(size, 100.0)

    def messages(comm: Any) -> None:
        from device import Pool

        pool, stream, seat = Pool(0, 64 << 20), cuda.stream(0), met.of(comm.rank)
        comm.cuda(0)
        sends = [(pool.array(np.full(300_000, comm.rank, "i4")), p) for p in range(size)]
        recvs = [(pool.array(np.full(300_000, -1, "i4")), p) for p in range(size)]
        comm.barrier()
        seat.gather(0.0)
        with comm.on_stream(stream):
            for _ in range(3):
                comm.exchange(sends, recvs)
        cuda.stream_wait(0, stream)
        comm._collectives.launch.cuda.streams.open().check()
        for x, peer in recvs:
            assert (x.get() == peer).all()

    together.spawn(messages, size, timeout=60.0)
    assert [text for text in fakecuda.remarks() if text.startswith("deadlock")] == []


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.fake_cuda(patience=20)
def test_plans_then_a_barrier_then_calls(size: int) -> None:
    """As docs/gpu.md says; functions are loaded as late as the driver may."""
    kernels.take_any()
    met = together.Meeting(size, 100.0)
    together.spawn(lambda comm: _calls(comm, met.of(comm.rank), True), size, timeout=60.0)
    assert [text for text in fakecuda.remarks() if text.startswith("deadlock")] == []


@pytest.mark.fake_cuda(patience=1)
def test_a_first_call_beside_a_kernel_that_waits_for_it_is_found() -> None:
    kernels.take_any()
    met, launched = together.Meeting(2, 100.0), threading.Event()
    remarks: list[str] = []

    def rank(comm: Any) -> None:
        try:
            _calls(comm, met.of(comm.rank), False, launched)
        except pycoll.PycollError:
            if not remarks:  # a rank that has failed frees memory, which may wait, too
                remarks.extend(fakecuda.remarks())
            raise

    with pytest.raises(pycoll.PycollError):
        together.spawn(rank, 2, timeout=60.0)
    found = [text.split()[1] for text in remarks if text.startswith("deadlock")]
    assert found
    assert set(found) <= {"cuModuleLoadData", "cuFuncGetAttribute", "cuMemAlloc"}
