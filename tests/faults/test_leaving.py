"""Ends that come at a bad moment: while a call is under way, a peer is dying, news is told."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import BrokenError, PeerLostError, UsageError
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.runtime import engine
from pycoll.runtime.failure import Failure
from pycoll.runtime.native import bindings
from pycoll.runtime.plan import cache as plans


@pytest.mark.parametrize("what", ["raises", "closes"])
def test_a_signal_handler_inside_a_call_leaves_nothing_unfinished(what: str) -> None:
    def rank() -> None:
        comm = pycoll.init()
        mine = np.zeros(2, "int64")
        mine[comm.rank] = os.getpid()
        first = int(comm.allreduce(mine)[0])

        def handler(*_: object) -> None:
            if what == "closes":
                comm.close()
            raise UsageError("from a handler")

        signal.signal(signal.SIGUSR1, handler)
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(UsageError, match=r"from a handler|close: another thread"):
                comm.allreduce(np.ones(5))
            with pytest.raises(BrokenError, match="stopped by UsageError inside allreduce"):
                comm.allreduce(np.ones(5))
        else:
            # Rank 0 is inside its call once it says so, which it does when it has waited.
            while "float64, 5 elements" not in bindings.status_read(comm._engine.comm, 0).text:
                pass
            os.kill(first, signal.SIGUSR1)
            with pytest.raises(BrokenError, match="gave up"):
                comm._engine.bootstrap.barrier()
            with pytest.raises(BrokenError, match="gave up: UsageError inside allreduce"):
                comm.allreduce(np.ones(5))
        comm.close()
        assert comm._engine.life.closed

    pycoll.spawn(rank, 2, timeout=60)


def test_a_peer_that_dies_before_its_news_can_be_told() -> None:
    def rank() -> None:
        honest = Control.attach

        def late(self: Control, *callbacks: Any) -> Any:
            if self.rank == 0:
                while 1 not in self.lost():
                    time.sleep(0.01)
            done = honest(self, *callbacks)
            while self.rank == 0 and self._untold:  # told before whoever attached goes on
                time.sleep(0.01)
            return done

        Control.attach = late  # type: ignore[method-assign]
        comm = pycoll.init(timeout=10)
        if comm.rank == 1:
            os._exit(1)
        with pytest.raises(PeerLostError, match=r"rank 1 .* died after 0 calls"):
            comm.allreduce(np.ones(1000))

    assert pycoll.spawn(rank, 2, timeout=60, check=False)[0] is None


def test_a_communicator_that_is_collected_on_the_control_thread() -> None:
    def rank() -> None:
        told, honest = threading.Event(), Failure.on_lost

        def collected(self: Failure, rank: int, reason: str) -> None:
            comm._engine.leave()  # as the collector may, amid the callback
            for _ in range(100):
                honest(self, rank, reason)
            told.set()

        Failure.on_lost = collected  # type: ignore[method-assign]
        comm = pycoll.init()
        x = comm.allreduce(np.ones(3))
        if comm.rank == 0:
            assert told.wait(30)
            while threading.active_count() > 1:
                time.sleep(0.01)
            with pytest.raises(pycoll.ClosedError):
                comm.allreduce(x)
        comm.close()

    pycoll.spawn(rank, 2, timeout=60)


@pytest.mark.parametrize("last", [False, True])
def test_a_communicator_that_is_collected_amid_the_close_of_another(last: bool) -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=20)
        closed, cycle = comm.dup(), [comm.dup()]
        cycle.append(cycle)  # type: ignore[arg-type]
        comm.barrier()
        gc.disable()
        del cycle
        if last:
            comm.close()
        part = ControlPlane._part

        def collecting(*of: Any) -> None:
            ControlPlane._part = part  # type: ignore[method-assign]
            gc.collect()  # as an allocation there may
            part(*of)

        ControlPlane._part = collecting  # type: ignore[method-assign]
        closed.close()
        assert ControlPlane._part is part
        if not last:
            comm.barrier()
            comm.close()

    pycoll.spawn(rank, 2, timeout=60)


def test_a_board_does_not_wait_for_ever_for_who_leaves() -> None:
    def rank() -> None:
        comm = pycoll.init()
        said: list[bytes] = []
        statuses = comm._engine.failure.statuses
        asked = threading.Thread(target=lambda: said.append(statuses.said()), daemon=True)
        with engine._freeing:
            asked.start()
            asked.join(30)
            assert said
        comm.close()

    pycoll.spawn(rank, 1, timeout=60)


def test_a_call_that_ends_while_its_rank_leaves_is_counted() -> None:
    def rank() -> None:
        comm = pycoll.init()
        if comm.rank == 0:
            honest = bindings.comm_abort
            work = comm.allreduce(np.ones(3), async_op=True)

            def late(*arguments: Any) -> None:
                comm._engine.bootstrap.barrier()
                while not work.done():
                    time.sleep(0.01)
                honest(*arguments)

            bindings.comm_abort = late
            comm._engine.leave()
        else:
            comm._engine.bootstrap.barrier()
            assert (comm.allreduce(np.ones(3)) == 2).all()
            with pytest.raises(PeerLostError, match=r"rank 0 .* after 1 call and takes no part"):
                comm.allreduce(np.ones(3))

    pycoll.spawn(rank, 2, timeout=60)


def test_leaving_frees_nothing_under_a_thread_that_is_inside_a_call() -> None:
    class Spy:
        """The native functions; notes the plans that are freed."""

        def __init__(self) -> None:
            self.freed: list[Any] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(honest, name)

        def pc_plan_free(self, plan: Any) -> None:
            self.freed.append(plan)
            honest.pc_plan_free(plan)

    honest = bindings.lib

    def rank() -> None:
        spy = bindings.lib = Spy()
        comm = pycoll.init()
        x = np.ones(10)
        comm.allreduce(x)
        if comm.rank == 0:
            threading.Thread(target=comm.allreduce, args=(x,), daemon=True).start()
            while not comm._engine.calling():
                pass
            comm._engine.leave()
            assert spy.freed == []
        else:
            with pytest.raises(PeerLostError):
                comm._engine.bootstrap.barrier()  # until rank 0 has left
            comm.close()
            assert len(spy.freed) == 1

    pycoll.spawn(rank, 2, timeout=60)


def test_no_plan_is_forgotten_under_a_thread_that_is_inside_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 1)

    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(4)
            comm.allreduce(x)
            if comm.rank == 0:
                thread = threading.Thread(target=comm.allreduce, args=(x,))
                thread.start()
                while not comm._engine.calling():
                    pass
                with pytest.raises(UsageError, match="another thread is inside a call"):
                    comm.allreduce(np.ones(5))
                kept = [call.count for call, _ in comm._collectives.launch.plans._plans]
                comm._engine.bootstrap.barrier()
                thread.join()
                assert kept == [4, 5]
            else:
                comm._engine.bootstrap.barrier()
                comm.allreduce(x)
            assert (x == 4).all()

    pycoll.spawn(rank, 2, timeout=60)
