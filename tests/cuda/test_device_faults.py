"""Ranks that die, stop, leave or call something else, while kernels wait: everybody hears who."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import time
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll import (
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    Communicator,
    MismatchError,
    PeerLostError,
    PycollError,
)

pytestmark = gpus.MARKS


def pids(comm: Communicator) -> list[int]:
    return [int(pid) for pid in comm.allgather(np.array([os.getpid()]))]


def settled(x: gpus.Seen, comm: Communicator) -> None:
    """A call that ends well, so that the plan is there."""
    comm.allreduce(x, async_op=True).synchronize()


def repeat(comm: Communicator, x: gpus.Seen) -> None:
    """Call until it raises: bad news takes a moment to come."""
    while True:
        settled(x, comm)


def listen(comm: Communicator) -> None:
    """Look for bad news until there is some."""
    plane = comm._collectives.launch.cuda.streams.open()
    while True:
        plane.check()


def test_killed_while_kernels_wait() -> None:
    def rank() -> str:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        works = [] if comm.rank == 1 else [comm.allreduce(x, async_op=True) for _ in range(3)]
        if works:
            works[0].wait()  # only the stream waits
        comm.barrier()  # a launch after the death might raise already
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as lost:
            works[0].synchronize()
        for work in works[1:]:
            assert isinstance(work.exception(), BrokenError)
        with pytest.raises(BrokenError, match="an earlier failure broke the communicator: rank 1"):
            comm.allreduce(x)
        comm.close()
        return str(lost.value)

    found = gpus.ranks(3, rank, check=False)
    assert isinstance(found.pop(1), PeerLostError)
    for message in found:
        assert re.match(r"rank 1 \(process \d+ on ", message), message
        assert "died and takes no part in call" in message
        assert message.endswith("on the GPU, allreduce(sum, float32, 1000 elements)")


def test_killed_before_the_call() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        end = os.pidfd_open(pids(comm)[1])
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        select.select([end], [], [])
        with pytest.raises(PeerLostError, match=r"rank 1 \(process \d+ on .*\) died"):
            repeat(comm, x)
        comm.close()

    assert [type(o) for o in gpus.ranks(2, rank, check=False)] == [type(None), PeerLostError]


def test_a_rank_that_does_not_come() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        comm.barrier()  # or else a rank may hear of the failure in its first call
        if comm.rank == 0:
            work = comm.allreduce(x, async_op=True, timeout=0.5)
            text = (
                r"allreduce\(sum, float32, 1000 elements\) did not finish within 0.5 s on the GPU"
                r": rank 0 waits for rank 1 \(count \d+, want \d+; instruction \d+ of block \d+\)"
            )
            with pytest.raises(CollectiveTimeout, match=text):
                work.synchronize()
        else:
            with pytest.raises(CollectiveTimeout, match="rank 0 waits for rank 1"):
                listen(comm)
        assert comm.allreduce(np.ones(3)).tolist() == [2] * 3  # the host's calls go on
        comm.close()

    gpus.ranks(2, rank)


def test_after_a_fault_on_the_gpu_nobody_waits() -> None:
    def rank() -> str:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        comm.barrier()
        with pytest.raises(PycollError) as failed:
            settled(x, comm)
        comm.close()  # of kernels that will never say that they have ended
        return str(failed.value)

    said = gpus.ranks(2, rank, fail="kernel:2=719", timeout=60)
    assert any("CUDA_ERROR_LAUNCH_FAILED" in text for text in said), said


def test_a_failure_is_told_by_the_next_call() -> None:
    def rank() -> None:
        comm = pycoll.init()
        stream, x = fakecuda.Stream(), gpus.of(np.ones(1000, "f4"))
        with comm.on_stream(stream):
            comm.allreduce(x)
            if comm.rank == 0:
                comm.allreduce(x, timeout=0.5)  # returns at once
                stream.synchronize()  # and the stream ends, too
                with pytest.raises(CollectiveTimeout, match="did not finish within"):
                    comm.allreduce(x)
                with pytest.raises(BrokenError, match="did not finish within"):
                    comm.allreduce(x)
        comm.barrier()  # a rank that closed earlier would be why rank 0's call fails
        comm.close()

    gpus.ranks(2, rank)


def test_ranks_that_call_different_things() -> None:
    def rank() -> str:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        comm.plan("allreduce", x, op="max")
        work = comm.allreduce(x, op="max" if comm.rank else "sum", async_op=True)
        with pytest.raises(MismatchError) as different:
            work.synchronize()
        comm.close()
        return str(different.value)

    for message in gpus.ranks(2, rank):
        assert "ranks called different things: rank " in message
        assert re.search(r"allreduce\((sum|max), float32, 1000 elements\)", message)


def test_a_rank_that_leaves() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        if comm.rank == 0:
            with pytest.raises(
                PeerLostError, match=r"rank 1 .* closed its communicator after 1 call on its GPU"
            ):
                comm.allreduce(x, async_op=True).synchronize()
        comm.close()

    gpus.ranks(2, rank)


def test_a_rank_that_raises_while_its_kernels_wait() -> None:
    def fail(comm: Communicator, x: gpus.Seen) -> None:
        with comm:
            comm.allreduce(x, async_op=True)
            raise ZeroDivisionError

    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        end = os.pidfd_open(pids(comm)[0])
        comm.barrier()
        if comm.rank == 1:
            with pytest.raises(ZeroDivisionError):
                fail(comm, x)
        elif comm.rank == 0:
            with pytest.raises(PeerLostError, match=r"rank 1 .* failed with ZeroDivisionError"):
                settled(x, comm)
        else:  # of whose leaving rank 0 might hear first; with its call the kernels might all end
            select.select([end], [], [])
        comm.close()

    gpus.ranks(3, rank)


def test_what_is_closed() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        plan = comm.plan("allreduce", x)
        works = [comm.allreduce(x, async_op=True) for _ in range(3)]
        array = comm.empty(10, "float32", device="cuda")
        comm.close()  # waits for what is queued
        assert x.host[0] == 8
        assert works[2].synchronize() is x
        for call in (plan, lambda: comm.allreduce(x), comm.cuda, lambda: comm.on_stream(0)):
            with pytest.raises(ClosedError):
                call()
        with pytest.raises(ClosedError):
            comm.empty(3, device="cuda")
        del array

    gpus.ranks(2, rank)


def test_left_without_closing() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        comm.allreduce(x)
        comm.barrier()  # a rank that leaves waits only briefly for kernels of its peers
        if comm.rank:
            del comm

    gpus.ranks(2, rank)


def test_a_launch_that_fails() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = gpus.of(np.ones(1000, "f4"))
        settled(x, comm)
        comm.barrier()
        if comm.rank == 0:
            fakecuda.fail("cuLaunchKernelEx:1=701")
        with pytest.raises(pycoll.PycollError, match="cuLaunchKernelEx") as failed:
            repeat(comm, x)
        assert (comm.rank == 0) == (not isinstance(failed.value, BrokenError))
        comm.close()

    gpus.ranks(2, rank)


def test_the_child_of_a_fork_has_none() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = gpus.of(np.ones(1000, "f4"))
            settled(x, comm)
            child = os.fork()
            if not child:
                code = 1
                try:
                    comm.allreduce(x)
                except pycoll.UsageError as error:
                    code = 0 if "belongs to process" in str(error) else 2
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            settled(x, comm)
            assert x.host[0] == 4

    gpus.ranks(2, rank)


def held() -> int:
    """Count this process's descriptors and threads."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def test_nothing_is_left_behind() -> None:
    def once(comm: Communicator) -> None:
        with comm.dup() as group:
            settled(gpus.of(np.ones(100_000, "f4")), group)

    def rank() -> None:
        with pycoll.init() as comm:
            once(comm)  # whatever stays for good
            before = held()
            for _ in range(3):
                once(comm)
            deadline = time.monotonic() + 20
            while held() > before and time.monotonic() < deadline:
                pass  # a thread that has been joined may still be listed for a moment
            assert held() <= before

    gpus.ranks(2, rank)


def test_a_rank_that_cannot_make_its_plan() -> None:
    """The others have launched theirs, and would wait for it until the deadline."""

    def rank() -> None:
        from pycoll.runtime.cuda import kernels

        def lacks(*_: Any) -> bytes:
            raise pycoll.UnavailableError("no room for kernels")

        comm = pycoll.init(timeout=150)
        comm.cuda()
        x = gpus.of(np.ones(1000, "f4"))
        comm.barrier()
        start = time.monotonic()
        if comm.rank == 1:
            kernels.compile.cubin = lacks
            with pytest.raises(pycoll.UnavailableError, match="no room for kernels"):
                comm.allreduce(x)
        else:
            with pytest.raises(BrokenError, match=r"rank 1 .*UnavailableError inside allreduce"):
                comm.allreduce(x, async_op=True).synchronize()
        comm.barrier()  # nobody has left, so that it was not this which told them
        assert time.monotonic() - start < 60
        comm.close()

    gpus.ranks(3, rank)
