"""Work: who may wait, how often, from where, and what comes of it each time."""

from __future__ import annotations

import os
import queue
import sys
import threading

import numpy as np
import pytest

import pycoll
from pycoll import CollectiveTimeout, UsageError, Work


def test_a_failure_whose_report_is_interrupted_is_raised_by_the_next_wait() -> None:
    def rank() -> None:
        comm = pycoll.init()
        meet = comm._engine.bootstrap.barrier
        if comm.rank == 0:
            failure = comm._engine.failure
            honest = failure.raise_for

            def interrupted(*arguments: object) -> None:
                failure.raise_for = honest
                raise KeyboardInterrupt

            failure.raise_for = interrupted
            work = comm.allreduce(np.ones(5), async_op=True, timeout=0.2)
            with pytest.raises(KeyboardInterrupt):
                work.wait()
            for _ in range(2):
                with pytest.raises(CollectiveTimeout, match="did not finish within"):
                    work.wait()
            assert isinstance(work.exception(), CollectiveTimeout)
        else:
            with pytest.raises(pycoll.BrokenError):
                meet()  # ends when rank 0 gives up

    pycoll.spawn(rank, 2, timeout=60)


def test_several_threads_wait_for_what_another_submits() -> None:
    def rank() -> None:
        sys.setswitchinterval(1e-5)
        with pycoll.init() as comm:
            works: list[queue.Queue[Work | None]] = [queue.Queue() for _ in range(3)]
            found: list[object] = []

            def wait(mine: queue.Queue[Work | None]) -> None:
                while (work := mine.get()) is not None:
                    try:
                        a, b = work.wait()
                        found.append(a[0] + b[0] + work.done())
                    except BaseException as error:
                        found.append(error)

            threads = [threading.Thread(target=wait, args=(mine,)) for mine in works]
            for thread in threads:
                thread.start()
            for _ in range(500):
                work = comm.allreduce([np.ones(1000), np.ones(1, "int64")], async_op=True)
                for mine in works:
                    mine.put(work)
            for mine in works:
                mine.put(None)
            for thread in threads:
                thread.join()
            assert found == [5.0] * 1500

    pycoll.spawn(rank, 2, timeout=100)


def test_a_thread_that_waits_keeps_no_other_from_its_timeout() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            if comm.rank == 0:
                work = comm.allreduce(np.ones(5), async_op=True)
                thread = threading.Thread(target=work.wait)
                thread.start()
                for _ in range(20):
                    assert not work.done()
                    with pytest.raises(CollectiveTimeout, match="goes on, wait again"):
                        work.wait(timeout=0.02)
                comm._engine.bootstrap.barrier()
                thread.join()
                assert (work.wait() == 2).all()
            else:
                comm._engine.bootstrap.barrier()
                comm.allreduce(np.ones(5))

    pycoll.spawn(rank, 2, timeout=60)


def test_in_a_forked_child_nothing_waits() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            if comm.rank == 0:
                work = comm.allreduce(np.ones(5), async_op=True)
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        for ask in (work.wait, work.done, work.exception):
                            with pytest.raises(UsageError, match="belongs to process"):
                                ask()
                        del work
                        code = 0
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
                comm._engine.bootstrap.barrier()
                assert (work.wait() == 2).all()
            else:
                comm._engine.bootstrap.barrier()
                comm.allreduce(np.ones(5))

    pycoll.spawn(rank, 2, timeout=30)


def test_synchronize_waits_on_the_host() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(5)
            work = comm.allreduce(x, async_op=True)
            assert work.synchronize() is x
            assert x.tolist() == [2.0] * 5

    pycoll.spawn(rank, 2, timeout=60)
