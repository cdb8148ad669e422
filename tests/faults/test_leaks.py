"""Nothing is left behind: descriptors, mappings, threads, processes, names in /dev/shm."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest

import pycoll

SECONDS = 30.0  #: generous: reached only by a leak


def held() -> tuple[int, int, int, list[str]]:
    """Descriptors, mappings of memfds, threads, and names in /dev/shm of this process."""
    gc.collect()
    with open("/proc/self/maps") as file:
        mappings = sum("memfd" in line for line in file)
    tasks = len(os.listdir("/proc/self/task"))
    named = [name for name in os.listdir("/dev/shm") if "pycoll" in name]
    return len(os.listdir("/proc/self/fd")), mappings, tasks, named


def require(before: tuple[int, int, int, list[str]]) -> None:
    """Fail unless this process comes to hold what it held ``before``.

    The kernel lists a thread for a moment after it was joined.
    """
    deadline = time.monotonic() + SECONDS
    while held() != before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert held() == before


def use(comm: pycoll.Communicator) -> None:
    x = comm.empty(100_000)
    x[:] = 1
    plan = comm.plan("allreduce", x)
    plan()
    comm.allreduce(np.ones(10), async_op=True).wait()
    comm.allreduce([np.ones(3), np.ones(4)])
    comm.barrier()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("end", ["close", "with", "collected", "broken"])
def test_a_communicator_leaves_nothing(size: int, end: str) -> None:
    def rank() -> None:
        # One that stays: the ranks of a spawned job meet again at the same place only once.
        before = held()
        comm = pycoll.init()
        use(comm)
        if end == "with":
            with comm:
                use(comm)
        elif end == "broken":
            with pytest.raises((pycoll.MismatchError, pycoll.CollectiveTimeout)):
                comm.allreduce(np.ones(1 + comm.rank), timeout=0.2) if size > 1 else timeout()
            comm.close()
        elif end == "close":
            comm.close()
        del comm
        require(before)
        assert threading.active_count() == 1

    pycoll.spawn(rank, size, timeout=60)


def timeout() -> None:
    raise pycoll.CollectiveTimeout("a single rank never waits")


def test_a_failed_init_leaves_nothing() -> None:
    from pycoll.bootstrap import detect
    from pycoll.runtime.native import load

    def rank() -> None:
        before = held()
        met = detect()
        if met.rank:
            load.version = lambda: "0.0.9"
        with pytest.raises(pycoll.BootstrapError, match=r"rank 1 runs pycoll 0.0.9, rank 0 runs"):
            pycoll.init(met)
        del met
        require(before)

    pycoll.spawn(rank, 2, timeout=60)


def test_many_sizes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycoll.runtime.plan import cache as plans

    monkeypatch.setattr(plans, "MAX_PLANS", 10)

    def rank() -> None:
        with pycoll.init() as comm:
            kept = np.ones(5)
            plan = comm.plan("allreduce", kept)
            for count in range(1, 200):
                assert comm.allreduce(np.ones(count))[0] == 2
                assert len(comm._collectives.launch.plans._plans) <= 10
            assert plan()[0] == 2

    pycoll.spawn(rank, 2, timeout=60)


def test_many_algorithms_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycoll.runtime.plan import cache as plans

    monkeypatch.setattr(plans, "MAX_PLANS", 3)

    def rank() -> None:
        with pycoll.init() as comm:
            bound = comm.plan("allreduce", np.ones(5))
            for chunks in range(1, 12):

                @pycoll.algorithm(pycoll.allreduce)
                def exchange(b: pycoll.ScheduleBuilder, chunks: int = chunks) -> None:
                    b.chunks(chunks)
                    b.send(b.output[:], to=1 - b.rank)
                    b.recv_reduce(b.output[:], frm=range(b.size))

                assert comm.allreduce(np.ones(100), algorithm=exchange)[0] == 2
            kept, failure = comm._collectives.launch.plans, comm._engine.failure
            gc.collect()
            assert len(kept._plans) <= 3
            kind = type(comm._engine.dispatcher)
            assert 1 < sum(type(one) is kind for one in gc.get_objects()) <= 4
            assert len(kept._known) <= 4
            assert len(kept.proofs._known) <= 8
            texts = [plan.text for plan in failure.plans.values()]
            assert len(texts) <= 4
            assert "allreduce(sum, float64, 5 elements)" in texts  # of the bound one, which lives
            assert bound()[0] == 2

    pycoll.spawn(rank, 2, timeout=60)
