"""Ranks that die, stop, come late, raise or leave: every other rank is told who and how."""

from __future__ import annotations

import functools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ports
import pytest
from waiting import wait_until, wait_until_stopped

import pycoll
from pycoll import BrokenError, CollectiveTimeout, Communicator, PeerLostError
from pycoll.bootstrap import control_router, detect
from pycoll.config import Config


def outcomes(size: int, function: Any) -> list[Any]:
    """What the ranks returned, or the exceptions that ended them."""
    return pycoll.spawn(function, size, timeout=120, check=False)


def pids(comm: Communicator) -> list[int]:
    mine = np.zeros(comm.size, "int64")
    mine[comm.rank] = os.getpid()
    return [int(pid) for pid in comm.allreduce(mine)]


def idle(comm: Communicator, rank: int) -> bool:
    """Tell whether a rank has come back from its first call, and is in no other."""
    from pycoll.runtime.native import bindings

    status = bindings.status_read(comm._engine.comm, rank)
    return (status.sequence, status.state) == (1, bindings.IDLE)


def repeat(comm: Communicator, count: int) -> None:
    """Call until it raises: a call whose data had come before the bad news may still end well."""
    while True:
        comm.allreduce(np.ones(count))


@pytest.mark.parametrize("size", [2, 4])
def test_killed_while_the_others_wait(size: int) -> None:
    def rank() -> str:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as lost:
            comm.allreduce(np.ones(1000))
        with pytest.raises(BrokenError, match="an earlier failure broke the communicator: rank 1"):
            comm.allreduce(np.ones(1000))
        return str(lost.value)

    found = outcomes(size, rank)
    assert isinstance(found.pop(1), PeerLostError)
    for message in found:
        assert message.startswith("rank 1 (process ")
        assert "died after 1 call and takes no part in call 2, allreduce(sum, float64" in message


def test_killed_while_the_others_do_something_else() -> None:
    def rank() -> None:
        comm = pycoll.init()
        end = os.pidfd_open(pids(comm)[1])
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        select.select([end], [], [])
        with pytest.raises(PeerLostError, match=r"rank 1 \(process \d+ on .*\) died after 2"):
            comm.allreduce(np.ones(1))
        comm.close()

    assert [type(o) for o in outcomes(3, rank)] == [type(None), PeerLostError, type(None)]


def test_killed_during_a_queued_call() -> None:
    heard, told = os.pipe()

    def rank() -> None:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 1:
            os.read(heard, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        works = [comm.allreduce(np.ones(10), async_op=True) for _ in range(3)]
        os.write(told, b"1")  # before that: else the second or third would raise it
        with pytest.raises(PeerLostError, match=r"rank 1 .* died after 1 call"):
            works[0].wait()
        for work in works[1:]:
            assert isinstance(work.exception(), BrokenError)
        comm.close()

    assert outcomes(2, rank)[0] is None
    os.close(heard)
    os.close(told)


def test_a_stopped_rank() -> None:
    def rank() -> str:
        comm = pycoll.init()
        other = pids(comm)[1]
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            with pytest.raises(CollectiveTimeout) as late:
                repeat(comm, 3)
        else:
            wait_until(lambda: idle(comm, 1))
            with pytest.raises(CollectiveTimeout) as late:
                comm.allreduce(np.ones(3), timeout=0.5)
            wait_until_stopped(other)
            os.kill(other, signal.SIGCONT)
        with pytest.raises(BrokenError, match=r"did not finish within 0\.5 s"):
            comm.allreduce(np.ones(3))
        return str(late.value)

    first, second = outcomes(2, rank)
    assert first == second
    assert "rank 0 waits for rank 1" in first
    assert "rank 1 has made 1 call, last allreduce(sum, int64, 2 elements)" in first
    assert "and has not called this allreduce" in first


@pytest.mark.parametrize("queued", [False, True])
def test_a_rank_that_never_comes(queued: bool) -> None:
    def rank() -> str:
        comm = pycoll.init()
        comm.barrier()
        meet = comm._engine.bootstrap.barrier
        if comm.rank == 1:
            with pytest.raises(BrokenError, match="gave up"):
                meet()  # ends when rank 0 and 2 give up
            with pytest.raises(CollectiveTimeout) as late:
                repeat(comm, 7)
            return str(late.value)
        wait_until(lambda: idle(comm, 1))
        call = functools.partial(comm.allreduce, np.ones(7), async_op=queued, timeout=0.5)
        with pytest.raises(CollectiveTimeout) as late:
            call().wait()  # the blocking call raises before there is anything to wait for
        with pytest.raises(BrokenError) as later:
            comm.barrier()
        assert repr(later.value.__cause__) == repr(late.value)
        return str(late.value)

    for message in outcomes(3, rank):
        assert "allreduce(sum, float64, 7 elements) at " in message, message
        assert "test_death.py" in message
        assert "did not finish within 0.5 s" in message
        assert "rank 1 has made 1 call, last barrier()" in message
        assert "and has not called this allreduce" in message


def test_the_communicators_own_deadline() -> None:
    def rank() -> None:
        comm = pycoll.init(detect(Config.load(timeout=60)), timeout=1)
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout, match=r"barrier\(\) at .* within 1 s: rank 0 wa"):
                comm.barrier()
        else:
            with pytest.raises(BrokenError, match="gave up"):
                comm._engine.bootstrap.allgather(b"", 60)

    assert outcomes(2, rank) == [None, None]


def test_an_exception_in_one_rank() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.barrier()
            if comm.rank == 1:
                raise ValueError("a bad sample")
            comm.allreduce(np.ones(5))

    first, second, third = outcomes(3, rank)
    assert isinstance(second, ValueError)
    for error in (first, third):
        assert isinstance(error, PeerLostError)
        assert "rank 1 (process" in str(error)
        assert "failed with ValueError: a bad sample after 1 call and takes no part" in str(error)


def test_a_rank_that_closes_early() -> None:
    def rank() -> None:
        comm = pycoll.init()
        comm.barrier()
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(
            PeerLostError, match=r"closed its communicator after 1 call and takes no part in call 2"
        ):
            comm.allreduce(np.ones(5))
        comm.close()

    assert outcomes(3, rank) == [None] * 3


@pytest.mark.parametrize("late", [0, 2])
def test_a_call_before_the_one_that_misses_a_rank_ends_well(late: int) -> None:
    def rank() -> None:
        comm = pycoll.init()
        failure, x = comm._engine.failure, np.full(3, float(comm.rank))
        if comm.rank == late:  # the others are ahead of it, and one has broken meanwhile
            while failure._missed is None and failure.error is None:
                select.select([], [], [], 0.01)
        comm.broadcast(x, root=1)
        assert x.tolist() == [1, 1, 1]
        if comm.rank == 1:
            comm.close()
            return
        with pytest.raises(PeerLostError, match="closed its communicator after 1 call and takes"):
            comm.allreduce(x)
        with pytest.raises(BrokenError, match="an earlier failure broke the communicator: rank 1"):
            comm.barrier()

    assert outcomes(3, rank) == [None] * 3


def test_exit_without_close_ends_well_for_those_who_need_no_more() -> None:
    def rank() -> float:
        comm = pycoll.init()
        for _ in range(100):
            x = np.ones(20_000)
            comm.allreduce(x)
        comm.allreduce(np.ones(10), async_op=True)
        comm.allreduce(x)
        return float(x[0])

    for _ in range(5):
        assert outcomes(4, rank) == [16.0] * 4


def test_ctrl_c() -> None:
    def rank() -> None:
        comm = pycoll.init()
        first = pids(comm)[0]
        if comm.rank == 0:
            with pytest.raises(KeyboardInterrupt):
                comm.allreduce(np.ones(5))
            with pytest.raises(BrokenError, match="stopped by KeyboardInterrupt inside allreduce"):
                comm.barrier()
            return
        # Rank 0 is inside its call once it says so on its status, which it does when it has waited.
        from pycoll.runtime.native import bindings

        while "float64, 5 elements" not in bindings.status_read(comm._engine.comm, 0).text:
            pass
        os.kill(first, signal.SIGINT)
        told = "gave up: KeyboardInterrupt inside allreduce"
        with pytest.raises(BrokenError, match="gave up"):
            comm._engine.bootstrap.barrier()  # joins the call only when rank 0 has left it
        with pytest.raises(BrokenError, match=told):
            repeat(comm, 5)

    assert outcomes(2, rank) == [None, None]


def test_a_fork_in_user_code() -> None:
    def rank() -> list[float]:
        with pycoll.init() as comm:
            shared = comm.empty(100)
            plan = comm.plan("allreduce", shared)
            work = comm.allreduce(np.ones(3), async_op=True)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for call in (
                        lambda: comm.allreduce(np.ones(3)),
                        lambda: comm.allreduce([np.ones(3)]),
                        lambda: comm.empty(3),
                        comm.barrier,
                        plan,
                    ):
                        with pytest.raises(pycoll.UsageError, match="belongs to process"):
                            call()
                    comm.close()
                    del comm, plan, shared
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            shared[:] = 2.0
            return [work.wait()[0], comm.allreduce(np.ones(3))[0], plan()[0]]

    assert outcomes(2, rank) == [[2.0, 2.0, 4.0]] * 2


def test_a_forked_child_does_not_hide_its_parents_death() -> None:
    def rank() -> None:
        comm = pycoll.init()
        reader, writer = os.pipe()
        if comm.rank == 1 and os.fork() == 0:
            os.close(writer)
            os.read(reader, 1)  # until rank 1 is gone, and a little longer: nobody writes
            select.select([], [], [], 20)
            os._exit(0)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError, match="rank 1"):
            comm.allreduce(np.ones(3))

    assert outcomes(2, rank)[0] is None


def test_two_threads_in_one_communicator() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.barrier()
            meet = comm._engine.bootstrap.barrier
            if comm.rank == 0:
                entered = threading.Event()
                x = np.ones(4)

                def first() -> None:
                    entered.set()
                    comm.allreduce(x)

                thread = threading.Thread(target=first)
                thread.start()
                entered.wait()
                while comm._engine.calling() is False:
                    pass
                with pytest.raises(pycoll.UsageError, match="another thread is inside a call"):
                    comm.allreduce(np.ones(4))
                with pytest.raises(pycoll.UsageError, match="another thread is inside a call"):
                    comm.allreduce(np.ones(4), async_op=True)
                with pytest.raises(pycoll.UsageError, match="close: another thread is inside"):
                    comm.close()
                meet()
                thread.join()
                assert (x == 2).all()
            else:
                meet()
                comm.allreduce(np.ones(4))
            comm.barrier()

    assert outcomes(2, rank) == [None, None]


def test_two_communicators_in_two_threads() -> None:
    def rank() -> list[float]:
        found = [0.0, 0.0]

        def use(comm: Communicator, which: int) -> None:
            x = np.empty(500 + which)
            for _ in range(300):
                x[...] = comm.rank + which
                comm.allreduce(x)
            found[which] = x.sum()

        with pycoll.init() as one, pycoll.init() as two:
            threads = [threading.Thread(target=use, args=(c, i)) for i, c in enumerate((one, two))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return found

    assert outcomes(1, rank) == [[0.0, 501.0]]


def test_an_uncaught_exception_in_a_script_is_told_to_the_others() -> None:
    code = (
        "import numpy, pycoll\n"
        "comm = pycoll.init(timeout=120)\n"
        "comm.barrier()\n"
        "if comm.rank: raise ValueError('a bad sample')\n"
        "comm.allreduce(numpy.ones(3))\n"
    )
    address = f"127.0.0.1:{ports.free()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ
            | {"PYCOLL_RANK": str(r), "PYCOLL_SIZE": "2", "PYCOLL_ADDRESS": address}
            | {"PYTHONPATH": os.getcwd()},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    errors = [process.communicate(timeout=180)[1] for process in processes]
    assert "ValueError: a bad sample" in errors[1]
    assert "PeerLostError: rank 1 (process " in errors[0]
    assert "failed with ValueError: a bad sample after 1 call and takes no part" in errors[0]


@pytest.mark.parametrize("waits", ["allreduce", "recv"])
@pytest.mark.usefixtures("patient")
def test_a_late_rank_says_what_it_does_on_other_communicators(
    waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_router, "POLL_SECONDS", 30.0)  # a busy machine answers late
    ends = os.pipe()

    def tell(comm: Communicator) -> None:
        wait_until(lambda: comm._engine.waits.waiter != 0)
        os.write(ends[1], b"x")

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        other = comm.dup()
        if comm.rank == 1:
            threading.Thread(target=tell, args=[comm]).start()
            with pytest.raises(PeerLostError):
                comm.allreduce(np.ones(10)) if waits == "allreduce" else comm.recv(np.ones(10), 0)
            return ""
        os.read(ends[0], 1)
        wait = functools.partial(
            *(
                (other.allreduce, np.ones(4))
                if waits == "allreduce"
                else (other.recv, np.ones(4), 1)
            )
        )
        with pytest.raises(CollectiveTimeout) as late:
            wait(timeout=2)
        return str(late.value)

    text, _ = pycoll.spawn(rank, 2, timeout=120)
    for end in ends:
        os.close(end)
    assert "rank 1 has made no call yet; its process is in " in text
    call = (
        r"allreduce\(sum, float64, 10 elements\) at \S+:\d+"
        if waits == "allreduce"
        else "a transfer"
    )
    assert re.search(f"is in {call} on the communicator of all ranks of the job", text), text


@pycoll.algorithm("allreduce")
def exchange(b: pycoll.ScheduleBuilder) -> None:
    """Send everybody everything; no certificate and no record of an earlier job knows it."""
    b.chunks(1)
    for k in range(1, b.size):
        b.send(b.input[0], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[0], frm=range(b.size))


@pytest.mark.parametrize(("victim", "maker"), [(0, 1), (3, 1), (0, 0), (3, 3)])
def test_who_waits_for_a_proof_hears_of_a_death_before_it_is_made(
    victim: int, maker: int, tmp_path: Path
) -> None:
    """The maker proves until all others have raised, or dies while they wait for it."""
    size = 4
    asked, heard = (tmp_path / name for name in ("asked", "heard"))
    asked.mkdir()
    heard.mkdir()

    def wait_for(folder: Path, count: int) -> bool:
        until = time.monotonic() + 20
        while len(os.listdir(folder)) < count and time.monotonic() < until:
            time.sleep(0.01)
        return len(os.listdir(folder)) >= count

    def rank() -> str:
        from pycoll import verify

        os.environ["PYCOLL_CACHE"] = str(tmp_path / "cache")
        comm = pycoll.init()
        comm.barrier()
        honest = verify.gate
        early = []

        def proves(*arguments: Any, **options: Any) -> Any:
            (asked / "maker").touch()
            if comm.rank == victim:
                assert wait_for(asked, size)
                time.sleep(0.1)  # what the others want is on its way
                os.kill(os.getpid(), signal.SIGKILL)
            early.append(wait_for(heard, size - 2))
            return honest(*arguments, **options)

        verify.gate = proves
        if comm.rank != maker:
            assert wait_for(asked, 1)
            (asked / str(comm.rank)).touch()
            if comm.rank == victim:
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as lost:
            comm.allreduce(np.ones(3), algorithm=exchange)
        (heard / str(comm.rank)).touch()
        with pytest.raises(BrokenError, match=f"broke the communicator: rank {victim}"):
            comm.allreduce(np.ones(3), algorithm=exchange)
        assert all(early), "the others heard of it when the proof was made"
        return str(lost.value)

    found = outcomes(size, rank)
    assert isinstance(found.pop(victim), PeerLostError)
    for message in found:
        assert isinstance(message, str), message
        assert message.startswith(f"rank {victim} (process ")
        assert "died after 1 call and takes no part in " in message
