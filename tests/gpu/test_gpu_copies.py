"""All-gather and all-to-all by copy engines, ranks as threads, on the stand-in."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import fakecuda
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import kernels
import together
from copies_cases import given, several

from pycoll import overlap
from pycoll.errors import (
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    MismatchError,
    PycollError,
    UnavailableError,
    UsageError,
)
from pycoll.runtime.cuda import copies as engine
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.native import cuda

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_data_of_ranks_as_threads(size: int) -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        several(comm, pool, pool.stream)

    together.spawn(rank, size)
    assert fakecuda.remarks() == []
    names = {call.name for call in fakecuda.calls()}
    assert "cuMemcpyAsync" in names


def test_no_kernel_is_launched() -> None:
    kernels.take_any()

    def rank(comm: Any) -> int:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        with overlap.copy_engine(comm, 1 << 16) as copies:
            out = copies.empty((comm.size, 10))
            before = launches()
            copies.allgather(pool.array(given(comm.rank, 0, 10, "float32")), out, pool.stream)
            copies.synchronize()
            return launches() - before

    assert together.spawn(rank, 2) == [0, 0]


def launches() -> int:
    return sum(call.name == "cuLaunchKernelEx" for call in fakecuda.calls())


def test_calls_are_ordered_by_streams() -> None:
    """What is enqueued behind each other needs no host between; ranks are not in step."""
    kernels.take_any()

    def rank(comm: Any) -> bool:
        from device import Pool

        pool, size = Pool(0, 1 << 20), comm.size
        comm.cuda(0)
        with overlap.copy_engine(comm, 1 << 20) as copies:
            out = copies.empty(size * 100)
            other = cuda.stream(0)
            kept = [pool.empty(size * 100) for _ in range(20)]
            xs = [pool.array(given(comm.rank, n, 100, "float32")) for n in range(20)]
            for n in range(20):
                on = pool.stream if n % 2 else other
                if n:  # who reads an array on one stream sees to it that another waits for that
                    Event(0, other if n % 2 else pool.stream).hold_back(on)
                copies.allgather(xs[n], out, stream=on)
                cuda.copy(0, kept[n].address, out.address, out.nbytes, on)
            copies.synchronize()
            cuda.stream_wait(0, other)
            cuda.stream_wait(0, pool.stream)
            wanted = [[given(p, n, 100, "float32") for p in range(size)] for n in range(20)]
            found = [kept[n].get() for n in range(20)]
            comm.barrier()
            cuda.stream_free(0, other)
        return all((a == np.concatenate(b)).all() for a, b in zip(found, wanted, strict=True))

    assert together.spawn(rank, 3) == [True] * 3


def test_a_rank_that_never_calls_is_not_waited_for_beyond_the_deadline() -> None:
    kernels.take_any()

    def rank(comm: Any) -> str:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        copies.timeout = 1.0
        out = copies.empty(20)
        text = ""
        x, y = (pool.array(given(0, number, 10, "float32")) for number in range(2))
        if comm.rank == 0:
            copies.allgather(x, out, pool.stream)
            copies.allgather(y, out, pool.stream)
            with pytest.raises(CollectiveTimeout, match="40 B did not finish within 1 s") as raised:
                copies.synchronize()
            cuda.stream_wait(0, pool.stream)  # what was behind the waits went on
            text = str(raised.value)
            with pytest.raises(CollectiveTimeout):
                copies.allgather(out, out)
        comm.barrier()
        if comm.rank == 1:  # it hears at its next call
            with pytest.raises(BrokenError, match="CopyEngine: rank 0 gave up its copies"):
                copies.allgather(x, out, pool.stream)
        copies.close()
        return text

    assert together.spawn(rank, 2)[0]


def allocated() -> tuple[int, int]:
    """Return how many allocations and registrations of the host's memory there are."""
    names = [call.name for call in fakecuda.calls() if call.result == 0]
    at = names.count
    return (
        at("cuMemAlloc") - at("cuMemFree"),
        at("cuMemHostRegister") - at("cuMemHostUnregister"),
    )


@pytest.mark.parametrize("how", ["timeout", "mismatch", "unused"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "by the communicator"])
def test_after_a_failure_nothing_stays_taken(how: str, closed: bool) -> None:
    """And the next communicator's copies are right."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        for _ in range(2):
            mine = comm.dup()
            copies = overlap.copy_engine(mine, 1 << 16)
            copies.timeout = 0.5 if how == "timeout" else 60.0
            out, x = copies.empty(20), pool.array(given(comm.rank, 0, 20, "float32"))
            if how == "mismatch" and comm.rank:
                copies.alltoall(x, out, pool.stream)
            elif how != "unused" and (how == "mismatch" or not comm.rank):
                copies.allgather(x[:10], out, pool.stream)
            if how == "mismatch" or (how == "timeout" and not comm.rank):
                with pytest.raises((MismatchError, BrokenError, CollectiveTimeout)):
                    copies.synchronize()
            if how == "timeout":
                comm.barrier()
            if closed:
                copies.close()
            mine.close()
            comm.barrier()
        seen = allocated() if comm.rank == 0 else None
        comm.barrier()
        with overlap.copy_engine(comm, 1 << 16) as copies:
            out = copies.empty(comm.size * 10)
            copies.allgather(pool.array(given(comm.rank, 1, 10, "float32")), out, pool.stream)
            copies.synchronize()
            found = np.empty(comm.size * 10, np.float32)
            pool.get(out.address, found)
            wanted = [given(peer, 1, 10, "float32") for peer in range(comm.size)]
            assert (found == np.concatenate(wanted)).all()
        comm.barrier()
        if seen is not None:
            assert seen == allocated(), "as much as before a window was there and gone"
            before.append(seen)
        comm.barrier()

    before: list[tuple[int, int]] = []
    together.spawn(rank, 2)
    assert allocated() == (0, 0), before
    assert fakecuda.remarks() == []


#: The first copy of a call fails; and so does the event behind what there is of the call.
PART, UNWATCHED = "cuMemcpyAsync:1", "cuMemcpyAsync:1,cuEventRecord:2"


def fails_in_part(comm: Any, copies: Any, pool: Any, how: str, gate: int = 0) -> None:
    """Have rank 0 enqueue a part of a call; in a frame that is gone when this returns.

    Args:
        comm: The ranks.
        copies: Their copy engine.
        pool: Memory, and the stream.
        how: What the driver refuses.
        gate: Address of a word that the stream waits for before it comes to the call.
    """
    out, x = copies.empty(20), pool.array(given(comm.rank, 0, 10, "float32"))
    comm.barrier()
    if comm.rank == 0:
        if gate:
            cuda.stream_wait64(0, pool.stream, gate, 1)
        fakecuda.fail(how)
        with pytest.raises(PycollError, match="cuMemcpyAsync"):
            copies.allgather(x, out, pool.stream)
    comm.barrier()


def test_what_was_enqueued_in_part_is_waited_for() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        fails_in_part(comm, copies, pool, PART)
        copies.close()
        assert cuda.stream_query(0, pool.stream)

    together.spawn(rank, 2)
    assert allocated() == (0, 0)


def test_what_was_enqueued_in_part_keeps_the_windows_of_the_others() -> None:
    """It may still write there: nobody knows."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        fails_in_part(comm, copies, pool, UNWATCHED)
        copies.close()

    together.spawn(rank, 2)
    assert allocated()[0] == 2


def test_what_was_enqueued_in_part_keeps_its_own_words() -> None:
    """The stream comes to them when the engine is closed, and nobody has it any more."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        gone = weakref.ref(copies)
        host, gate = cuda.host_alloc(0, 4096)
        fails_in_part(comm, copies, pool, UNWATCHED, gate)
        copies.close()
        del copies
        until = time.monotonic() + 60
        while gone() is not None and time.monotonic() < until:  # its thread ends, too
            gc.collect()
            time.sleep(0)
        found = gone() is not None
        ctypes.c_uint64.from_address(host).value = 1
        cuda.stream_wait(0, pool.stream)
        assert not found
        comm.barrier()
        cuda.host_free(0, host)

    together.spawn(rank, 2)


def test_a_wait_that_was_enqueued_in_part_keeps_its_words() -> None:
    """And no window."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        other = cuda.stream(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        out, x = copies.empty(20), pool.array(given(comm.rank, 0, 10, "float32"))
        copies.allgather(x, out, pool.stream)
        copies.synchronize()
        comm.barrier()
        if comm.rank == 0:
            fakecuda.fail("cuEventRecord:1")
            with pytest.raises(PycollError, match="cuEventRecord"):
                copies.wait(1, 0, other)
        comm.barrier()
        copies.close()
        cuda.stream_wait(0, other)
        cuda.stream_free(0, other)

    together.spawn(rank, 2)
    assert allocated() == (0, 1)


def test_a_call_that_is_interrupted_ends() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        out, x = copies.empty(10), pool.array(given(0, 0, 10, "float32"))
        with (
            mock.patch.object(cuda, "copy", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            copies.allgather(x, out, pool.stream)
        with pytest.raises(BrokenError, match="was enqueued in part: KeyboardInterrupt"):
            copies.synchronize()
        copies.close()

    together.spawn(rank, 1)
    assert allocated() == (0, 0)


def test_a_call_whose_engine_is_closed_meanwhile_is_refused() -> None:
    """Nothing of it is enqueued: the window is gone."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        out, x = copies.empty(10), pool.array(given(0, 0, 10, "float32"))

        def event(*args: int) -> Event:
            copies.close()
            return Event(*args)

        with (
            mock.patch.object(engine, "Event", event),
            mock.patch.object(cuda, "copy", side_effect=AssertionError("a copy")),
            pytest.raises(ClosedError, match="CopyEngine: it is closed"),
        ):
            copies.allgather(x, out, pool.stream)

    together.spawn(rank, 1)
    assert allocated() == (0, 0)


def test_ranks_that_call_different_things_hear_so() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        out = copies.empty(20)
        x = pool.array(given(comm.rank, 0, 20, "float32"))
        if comm.rank:
            copies.alltoall(x, out, pool.stream)
        else:
            copies.allgather(x[:10], out, pool.stream)
        with pytest.raises((MismatchError, BrokenError), match=r"different things|gave up"):
            copies.synchronize()
        copies.close()

    together.spawn(rank, 2)


def test_what_is_refused() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        for nbytes in (0, -1, 1.5, "x"):
            with pytest.raises(UsageError, match=r"overlap\.copy_engine: nbytes is"):
                overlap.copy_engine(comm, nbytes)
        with pytest.raises(UsageError, match="comm is None, want a pycoll"):
            overlap.copy_engine(None, 100)
        with overlap.copy_engine(comm, 4096) as copies:
            out, x = copies.empty(10), pool.empty(10).fill(0)
            assert "256 of 4096 B of its window taken" in repr(copies)
            with pytest.raises(UnavailableError, match="4000 B are wanted, and 3840 B of the wi"):
                copies.empty(1000)
            with pytest.raises(UsageError, match="dtype is 'quaternion', want one of pycoll's"):
                copies.empty(1, "quaternion")
            with pytest.raises(UsageError, match="out lies elsewhere, want an array of its empty"):
                copies.allgather(x, x)
            with pytest.raises(UsageError, match="out has 40 B, want 1 times the 20 B of x"):
                copies.allgather(x[:5], out)
            with pytest.raises(UsageError, match="x has 5 elements and out 10; want as many"):
                copies.alltoall(x[:5], out)
            with pytest.raises(UsageError, match="x is of int32 and out of float32"):
                copies.allgather(pool.empty(10, "int32"), out)
            with pytest.raises(UsageError, match="x and out overlap, want them apart"):
                copies.allgather(out, out)
            fakecuda.use(0)
            stream = fakecuda.Stream()
            with pytest.raises(UsageError, match="is being captured"), fakecuda.capture(stream):
                copies.allgather(x, out, stream.ptr)

    together.spawn(rank, 1)


@pytest.mark.fake_cuda(memops=0)
def test_a_gpu_whose_streams_wait_for_no_words() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        comm.cuda(0)
        with pytest.raises(UnavailableError, match="has no 64-bit stream memory operat"):
            overlap.copy_engine(comm, 4096)

    together.spawn(rank, 2)


def test_windows_of_different_sizes_are_refused_on_all_ranks() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        comm.cuda(0)
        with pytest.raises(UnavailableError, match="ranks ask for windows of different sizes"):
            overlap.copy_engine(comm, 4096 * (1 + comm.rank))
        comm.barrier()
        names = [call.name for call in fakecuda.calls()]
        # The words of both, and their windows: what a rank has besides is freed when it closes.
        assert names.count("cuMemHostUnregister") >= 2
        asked = [c.arguments for c in fakecuda.calls() if c.name == "cuMemAlloc"]
        assert {"4096", "8192"} <= set(asked)
        assert "cuMemFree" in names

    together.spawn(rank, 2)
