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
from pycoll.errors import UsageError
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


def test_collectives_run_on_a_part_of_the_sms() -> None:
    kernels.take_any()

    def rank(comm: Any) -> tuple[list[float], bool]:
        import numpy as np
        from device import Pool

        pool = Pool(0, 1 << 20)
        given = np.random.default_rng(comm.rank).integers(0, 99, 1000).astype(np.float32)
        x, y = pool.array(given), pool.array(given)
        comm.plan("allreduce", x)
        comm.barrier()
        # To part the SMs may wait for kernels, so no rank's collective runs before all have.
        with overlap.partition(16, comm) as part:
            comm.barrier()
            with part.communication as stream:
                comm.allreduce(x)
            with comm.on_stream(part.communication):
                comm.allreduce(x)
            stream.synchronize()
            comm.barrier()
        comm.barrier()  # as before: nor before all have theirs back
        with comm.on_stream(pool.stream):
            comm.allreduce(y)
            comm.allreduce(y)
        cuda.stream_wait(0, pool.stream)
        return x.get().tolist(), bool((x.get() == y.get()).all())

    (one, same), (other, too) = together.spawn(rank, 2)
    assert one == other
    assert same, "a part of the SMs changes no bit"
    assert too
    on = [" 16 SMs" in each.arguments for each in fakecuda.calls() if "LaunchKernel" in each.name]
    assert on == [True] * 4 + [False] * 4
    assert fakecuda.remarks() == []


def test_calls_with_async_op_run_on_the_part_too() -> None:
    """Wherever they are made while it is open: behind the computation, beside what follows it."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        import numpy as np
        from device import Pool

        pool = Pool(0, 1 << 20)
        given = [np.random.default_rng(p).integers(0, 99, 1000).astype(np.float32) for p in (0, 1)]
        x, y = pool.array(given[comm.rank]), pool.array(given[comm.rank])
        own = comm.cuda(0).stream
        comm.plan("allreduce", x)
        sends = [(pool.array(given[comm.rank]), 1 - comm.rank)]
        recvs = [(pool.empty(1000), 1 - comm.rank)]
        comm.barrier()
        with overlap.partition(16, comm) as part:
            assert comm.cuda().stream == part.communication.ptr
            comm.barrier()
            with comm.on_stream(part.computation):
                comm.allreduce(x, async_op=True).wait()
                cuda.fill(0, x.address, 0, 4, part.computation.ptr)  # between the calls
                comm.allreduce(x, async_op=True).wait()
            with part.communication:
                comm.allreduce(y, async_op=True).wait()
            comm.exchange(sends, recvs, async_op=True).synchronize()
            part.communication.synchronize()
            comm.barrier()
        comm.barrier()
        assert comm.cuda().stream == own
        with comm.on_stream(pool.stream):
            comm.allreduce(x, async_op=True).synchronize()
        wanted = 4 * (given[0] + given[1])
        wanted[0] = 0
        assert (x.get() == wanted).all()
        assert (y.get() == given[0] + given[1]).all()
        assert (recvs[0][0].get() == given[1 - comm.rank]).all()
        comm.barrier()

    together.spawn(rank, 2)
    on = [" 16 SMs" in each.arguments for each in fakecuda.calls() if "LaunchKernel" in each.name]
    assert on == [True] * 8 + [False] * 2
    assert fakecuda.remarks() == []


def test_of_two_partitions_the_last_that_is_open_has_the_calls() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        own = comm.cuda(0).stream
        first, second = (overlap.partition(sms, comm) for sms in (16, 24))
        assert comm.cuda().stream == second.communication.ptr
        first.close()
        assert comm.cuda().stream == second.communication.ptr
        second.close()
        assert comm.cuda().stream == own

    together.spawn(rank, 1)


def test_a_part_that_cannot_hold_the_communicators_blocks_is_refused() -> None:
    kernels.take_any()

    def rank(comm: Any) -> int:
        comm.cuda(0)
        with pytest.raises(UsageError, match="8 SMs hold 24 blocks of the collective at once"):
            overlap.partition(8, comm)
        with pytest.raises(UsageError, match="device is 0, and comm has a GPU of its own"):
            overlap.partition(16, comm, device=0)
        return int(comm.cuda().blocks)

    assert together.spawn(rank, 1) == [32]


def test_the_phase_for_a_gpu_times_every_way_and_says_what_is_paced(tmp_path: Path) -> None:
    """Rehearsed over the stand-in: the times mean nothing, the ways and labels are those."""
    import json
    import subprocess

    import run_all

    script = Path(run_all.__file__).with_name("run_all.py")
    command = [sys.executable, str(script), "--stand-in", "--short", "--minutes", "4"]
    command += ["--output", str(tmp_path), "overlap"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    details = json.loads((tmp_path / "gpu.json").read_text())["phases"]["overlap"]["details"]
    names = [name.split(",")[0] for name in details]
    assert names == ["chain", "product", "torch", "chain", "chain"]
    assert [name.split(", ")[2:] for name in details] == [[], [], [], ["paced"], ["allgather"]]
    chain, product, torch, paced, gathered = details.values()
    assert "torch finds no GPU" in torch or "torch does not load" in torch
    assert "copies" in gathered["ways_us"]
    for found in (chain, product, paced, gathered):
        assert {"sequential", "concurrent", "priority", "partition"} <= set(found["ways_us"])
        # The 64 blocks of both ranks, which have few threads here, find room on the least part.
        assert "partition: 124 SMs compute, 8 communicate" in found["note"]
        assert found["reckoned"]
    assert "paced at 450 GB/s: no measurement of a link" in paced["note"]
    assert "paced" not in chain["note"]


def test_a_communicator_remembers_that_its_kernels_are_paced() -> None:
    """Also when no more are, and of kernels that are loaded by the first call that is timed."""
    from pycoll.runtime.cuda import pace

    kernels.take_any()

    def rank(comm: Any) -> list[str]:
        from device import Pool

        pool = Pool(0, 1 << 20)
        x = pool.empty(100).fill(0)
        comm.cuda(0)
        said = [comm.cuda().paced]

        def collective(stream: Any) -> None:
            with comm.on_stream(stream):
                comm.allreduce(x)

        pace.set_rate(10**9)
        found = overlap.measure(lambda stream: None, collective, comm=comm, repeats=1)
        pace.set_rate(0)
        return [*said, comm.cuda().paced, found.note.splitlines()[-1]]

    label = "paced at 1 GB/s: no measurement of a link"
    assert together.spawn(rank, 1) == [["", label, label]]
