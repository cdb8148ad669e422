"""The heap under everything that Python does at a moment of its own choosing."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.runtime.host.heap import Heap
from pycoll.runtime.native import bindings


def test_two_threads_that_drop_the_last_arrays_close_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    both = threading.Barrier(2)

    class Live(dict[int, Any]):
        def pop(self, *arguments: Any) -> Any:
            found = super().pop(*arguments)
            both.wait()
            return found

    monkeypatch.setattr(bindings, "comm_close", closed.append)
    heap = Heap("comm")
    heap._closed, heap._live = True, Live({1: None, 2: None})
    threads = [threading.Thread(target=heap._discard, args=(address,)) for address in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert closed == ["comm"]


def test_an_array_may_die_while_others_are_looked_at() -> None:
    heap = Heap(None)

    class Start(int):
        def __le__(self, other: int) -> bool:  # as if the collector ran here
            heap._live.pop(int(self), None)
            return super().__le__(other)

    for start in (1, 2, 3):
        heap._live[Start(start)] = (1, None)  # type: ignore[assignment]
    assert not heap.holds(9, 1)
    assert heap._live == {}


def test_threads_allocate_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank() -> None:
        inside, overlapped = threading.Lock(), []
        honest = bindings.heap_alloc

        def alone(comm: Any, nbytes: int) -> int | None:
            if not inside.acquire(blocking=False):
                overlapped.append(nbytes)
                return honest(comm, nbytes)
            time.sleep(0.001)  # let others come, if they can
            address = honest(comm, nbytes)
            inside.release()
            return address

        with pycoll.init() as comm:
            monkeypatch.setattr(bindings, "heap_alloc", alone)

            def allocate() -> None:
                for _ in range(30):
                    comm.empty(10)

            threads = [threading.Thread(target=allocate) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert overlapped == []

    pycoll.spawn(rank, 1, timeout=60)


def test_a_forked_child_drops_an_array_of_a_closed_communicator() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x = comm.empty(100)
        x[:] = 1
        comm.allreduce(x, async_op=True).wait()  # starts a thread that the child has not
        comm.close()
        child = os.fork()
        if child == 0:
            del x
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (x == 2).all()

    pycoll.spawn(rank, 2, timeout=30)


def test_a_full_heap_of_one_rank_is_no_affair_of_the_others() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            if comm.rank == 0:

                def full(nbytes: int) -> None:
                    raise pycoll.UnavailableError("empty: no room")

                comm._engine.heap._allocate = full  # type: ignore[method-assign,assignment]
            for _ in range(2):
                x = [np.ones(10), np.ones(20)]
                assert all((a == 2).all() for a in comm.allreduce(x))
                assert all((a == 4).all() for a in comm.allreduce(x, async_op=True).wait())

    pycoll.spawn(rank, 2, timeout=60)
