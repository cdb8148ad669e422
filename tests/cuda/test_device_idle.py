"""What launches used is let go of once they have ended, though no call follows.

Nothing here is timed: a test waits until arrays have gone, or until it was looked several times
whether they can go, and they could not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

import kernels
import together

import pycoll
from pycoll.runtime.cuda.reclaim import RECLAIMER
from pycoll.runtime.native import cuda

pytestmark = gpus.MARKS

LOOKS = 3  #: that find something running
PATIENCE = 60.0


def until(what: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def looked() -> Iterator[list[bool]]:
    """Note what each look of this process's reclaimer came to: whether something has gone."""
    found: list[bool] = []
    look = RECLAIMER._pass
    RECLAIMER._pass = lambda: found.append(look()) or found[-1]  # type: ignore[method-assign]
    try:
        yield found
    finally:
        del RECLAIMER._pass  # type: ignore[method-assign]


def called(comm: Any, count: int, make: Callable[[Any], Any] = gpus.of) -> list[weakref.ref[Any]]:
    """Make calls on arrays that nobody else has."""
    seen = []
    for i in range(count):
        x = make(np.full(100 + i, 1.0, "f4"))
        seen.append(weakref.ref(x))
        comm.allreduce(x)
    return seen


def gone(seen: list[weakref.ref[Any]]) -> Callable[[], bool]:
    return lambda: all(each() is None for each in seen)


@pytest.mark.parametrize("count", [1, 70])
def test_no_further_call_is_needed(count: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            comm.cuda()
            for _ in range(2):  # the thread ends, and begins again
                seen = called(comm, count)
                stream.synchronize()
                until(gone(seen))
                until(lambda: RECLAIMER._thread is None)

    gpus.ranks(2, rank)


def test_the_heap_gives_back_its_own_alike_on_all_ranks() -> None:
    """Nobody else holds them: what a thread lets go of at its own time would lie apart."""

    def rank() -> None:
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            places = []
            for _ in range(10):
                x = comm.empty(1000, "f4", device="cuda")
                places.append(x.address)
                gpus.host(x)[...] = 1
                for _ in range(2):  # known, and not
                    comm.allreduce(x)
                stream.synchronize()
                seen = weakref.ref(x)
                del x
                assert seen() is None
            assert places == places[:1] * 10

    gpus.ranks(2, rank)


def test_not_while_another_communicator_of_the_rank_has_a_kernel_that_waits() -> None:
    def rank() -> None:
        with (
            pycoll.init(timeout=100) as comm,
            comm.dup() as other,
            comm.on_stream(stream := fakecuda.Stream()),
            other.on_stream(second := fakecuda.Stream()),
            looked() as looks,
        ):
            y = gpus.of(np.ones(10, "f4"))
            comm.plan("allreduce", gpus.of(np.full(100, 1.0, "f4")))  # it is looked at first
            other.plan("allreduce", y)
            x = gpus.of(np.full(100, 1.0, "f4"))
            seen = [weakref.ref(x)]
            if comm.rank == 0:  # first, so that nobody looks before it was launched
                other.allreduce(y)
            comm.allreduce(x)
            del x
            stream.synchronize()
            if comm.rank == 0:
                begun = len(looks)
                until(lambda: len(looks) >= begun + LOOKS)
                assert not gone(seen)()
            comm.barrier()
            if comm.rank == 1:
                other.allreduce(y)
            second.synchronize()
            assert (y.host == 2).all()
            until(gone(seen))

    gpus.ranks(2, rank)


@pytest.mark.fake_cuda(patience=20)
def test_not_while_a_kernel_of_another_rank_of_the_process_waits() -> None:
    """The driver frees nothing while it runs, and would let the late rank launch nothing."""
    kernels.take_any()
    met = together.Meeting(2, 100.0)

    def rank(comm: Any) -> None:
        fakecuda.use(0)
        stream, seat = cuda.stream(0), met.of(comm.rank)
        comm.cuda(0)
        x, y = (fakecuda.Array.of(np.ones(n, "f4")) for n in (100, 50))
        seen = [weakref.ref(x)]
        comm.plan("allreduce", x)
        comm.plan("allreduce", y)
        seat.gather(0.0)
        if comm.rank == 0:
            RECLAIMER._passing.acquire()  # nobody looks before the kernel that waits was launched
        seat.gather(0.0)
        with comm.on_stream(stream):
            comm.allreduce(x)
            del x
            cuda.stream_wait(0, stream)
            if comm.rank == 0:
                comm.allreduce(y)
                RECLAIMER._passing.release()
            seat.gather(0.0)
            if comm.rank == 1:
                begun = len(looks)
                until(lambda: len(looks) >= begun + LOOKS)
                assert not any(looks[begun:])
                assert not gone(seen)()
                comm.allreduce(y)
        cuda.stream_wait(0, stream)
        comm._collectives.launch.cuda.streams.open().check()
        seat.gather(0.0)
        assert (y.get() == 2).all()
        until(gone(seen))

    with looked() as looks:
        together.spawn(rank, 2, timeout=60.0)
    assert [text for text in fakecuda.remarks() if text.startswith("deadlock")] == []


def test_what_a_graph_may_launch_keeps_them() -> None:
    def rank() -> None:
        with (
            pycoll.init() as comm,
            comm.on_stream(stream := fakecuda.Stream()),
            looked() as looks,
        ):
            x = gpus.of(np.ones(10, "f4"))
            comm.allreduce(x)
            with fakecuda.capture(stream) as graphs:
                comm.allreduce(x)
            graphs[0].launch(stream)
            seen = called(comm, 1)
            stream.synchronize()
            begun = len(looks)
            until(lambda: len(looks) >= begun + LOOKS)
            assert not gone(seen)()
            graphs[0].close()
            until(gone(seen))

    gpus.ranks(2, rank)


def test_a_capture_beside_it_goes_on() -> None:
    """Memory is freed while this thread captures, which the driver by default does not allow."""

    def rank() -> None:
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            comm.allreduce(gpus.of(np.full(100, 1.0, "f4")))
            seen = called(comm, 1)
            stream.synchronize()
            own, x = fakecuda.Stream(), gpus.of(np.zeros(10, "u1"))
            with fakecuda.capture(own) as graphs:
                until(gone(seen))
                cuda.fill(0, x.host.ctypes.data, 7, 10, own.ptr)
            graphs[0].launch(own)
            own.synchronize()
            assert (x.host == 7).all()
            graphs[0].close()

    gpus.ranks(1, rank)


class Odd(gpus.Seen):
    """An array whose end runs a function."""

    def __init__(self, host: Any, end: Callable[[], None]) -> None:
        super().__init__(host)
        self._end = end

    def __del__(self) -> None:
        self._end()


def test_finalizers_that_raise_call_or_close() -> None:
    def rank() -> None:
        sys.unraisablehook = lambda what: raised.append(what.exc_type)
        raised: list[Any] = []
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            comm.cuda()
            other = comm.dup()
            other.cuda()
            plan = comm.plan("allreduce", gpus.of(np.ones(7, "f4")))
            y = gpus.of(np.ones(10, "f4"))
            comm.plan("allreduce", y)
            ran = []

            def fail() -> None:
                raise OSError("no")

            def call() -> None:
                with comm.on_stream(stream):
                    comm.allreduce(y)
                ran.append("called")

            def close() -> None:
                other.close()
                ran.append("closed")

            seen = []
            for end in (fail, call, plan.__repr__, close):
                x = Odd(gpus.empty(100), end)
                x.host[...] = 1
                seen.append(weakref.ref(x))
                comm.allreduce(x)
            del x, end, plan
            stream.synchronize()
            until(gone(seen))
            until(lambda: len(ran) == 2)
            stream.synchronize()
            assert raised == [OSError]
            assert (y.host == 2).all()

    gpus.ranks(2, rank)


def test_in_a_child_of_fork_there_is_no_thread() -> None:
    def rank() -> None:
        with (
            pycoll.init() as comm,
            comm.on_stream(stream := fakecuda.Stream()),
            looked(),
        ):
            seen = called(comm, 3)
            assert RECLAIMER._thread is not None
            dc = comm._collectives.launch.cuda.streams.open()
            taken, done = threading.Event(), threading.Event()

            def take() -> None:  # as the thread would that lets go
                with dc.turn, dc._guard:
                    taken.set()
                    done.wait(60)

            taker = threading.Thread(target=take)
            taker.start()
            assert taken.wait(60)
            child = os.fork()
            if child == 0:
                fine = RECLAIMER._thread is None and not RECLAIMER._launchers
                fine = fine and dc.turn.acquire(blocking=False) and dc._guard.acquire(False)
                os._exit(0 if fine else 1)
            done.set()
            taker.join()
            assert os.waitpid(child, 0)[1] == 0
            stream.synchronize()
            until(gone(seen))

    gpus.ranks(2, rank)


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import fakecuda, gpus, numpy as np, pycoll
gpus.use()
comm = pycoll.init(timeout=60)
stream = fakecuda.Stream()
with comm.on_stream(stream):
    for i in range({count}):
        comm.allreduce(gpus.of(np.ones(100, "f4")))
        comm.allreduce(gpus.of(np.ones(100, "f4")))
{end}
"""


@pytest.mark.parametrize("end", ["", "stream.synchronize(); comm.close()", "raise SystemExit(0)"])
@pytest.mark.parametrize("count", [1, 40])
def test_a_program_ends_while_arrays_are_held(end: str, count: int) -> None:
    fakecuda.library()
    tests = Path(__file__).parents[1]
    path = [str(tests / "cuda"), str(tests / "fakecuda"), str(tests)]
    text = SCRIPT.format(path=path, end=end, count=count)
    done = subprocess.run(
        [sys.executable, "-c", text], timeout=120, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_is_killed_while_the_others_hold_arrays() -> None:
    def rank() -> list[bool]:
        comm = pycoll.init(timeout=60)
        with comm.on_stream(stream := fakecuda.Stream()):
            seen = called(comm, 3)
            stream.synchronize()
            comm.barrier()
            if comm.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x = gpus.of(np.full(100, 1.0, "f4"))

            def more() -> None:
                comm.allreduce(x)
                stream.synchronize()
                comm.allreduce(x)

            with pytest.raises(pycoll.PycollError):
                more()
            until(gone(seen))
        return [True]

    results = gpus.ranks(2, rank, check=False)
    assert results[0] == [True]
