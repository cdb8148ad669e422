"""A call that was refused on one rank, who goes on: what follows is right or raises."""

from __future__ import annotations

import importlib.abc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import out_of_step
import pytest
import walk

import pycoll
from pycoll import Communicator, MismatchError, UsageError
from pycoll.bootstrap import job as jobs
from pycoll.runtime.native import bindings


def repeat(call: Callable[[], Any], work: Any = None) -> None:
    """Call until it raises: what another rank had sent before may still serve some calls."""
    if work is not None:
        work.wait()
    while True:
        call()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_programs_drawn_at_random(size: int) -> None:
    wrong, counted, _ = out_of_step.judge(range(25), size)
    assert not wrong, "\n".join(wrong)
    assert counted["programs"] == 25
    assert counted["refused"] > 15
    assert counted["MismatchError"] > 5


def test_the_root_of_a_gatherv_never_gets_the_data_of_the_call_before() -> None:
    def rank() -> tuple[list[Any], str]:
        comm = pycoll.init(timeout=60)
        counts = [4] * comm.size if comm.rank == 0 else None
        found: list[Any] = []
        try:
            for call in range(4):
                x = np.full(4, 10.0 * call + comm.rank)
                try:
                    got = comm.gatherv(x, [3, 9, 4] if call == 1 and counts else counts)
                    found.append(None if got is None else got.tolist())
                except UsageError:
                    found.append("refused")
        except (MismatchError, pycoll.BrokenError) as error:
            return found, str(error)
        return found, ""

    first, *others = pycoll.spawn(rank, 3, timeout=120)
    assert first[0] == [[0] * 4 + [1] * 4 + [2] * 4, "refused"]
    assert re.search(
        r"rank 0: gatherv at \S*test_out_of_step\.py:\d+, refused with Usage", first[1]
    )
    assert "rank 1: gatherv(float64, root 0)" in first[1]
    assert all(len(found) < 4 for found, error in others if error)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("refused", [0, 2])
@pytest.mark.usefixtures("patient")
def test_the_others_hear_at_once_whose_call_was_refused_and_why(
    refused: int, async_op: bool
) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        before = comm.allreduce(np.ones(3), async_op=async_op)
        if comm.rank == refused:
            with pytest.raises(UsageError, match="op is 'median'"):
                comm.allreduce(np.ones(9), op="median")
            with pytest.raises(MismatchError) as raised:  # though it calls nothing that differs
                repeat(lambda: comm.allreduce(np.ones(9)), before if async_op else None)
        else:
            with pytest.raises(MismatchError) as raised:
                comm.allreduce(np.ones(9))
        with pytest.raises(pycoll.BrokenError):
            comm.barrier()
        return str(raised.value)

    for text in pycoll.spawn(rank, 3, timeout=120):
        assert f"rank {refused}: allreduce at tests/faults/test_out_of_step.py" in text
        assert "refused with UsageError: op is 'median'" in text
        for other in {0, 1, 2} - {refused}:
            assert f"rank {other}: allreduce(sum, float64, 9 elements) at " in text


def test_a_call_that_the_boards_of_ranks_far_ahead_know_no_more() -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = np.ones(1)
        comm.barrier()
        if comm.rank == comm.size - 1:
            deadline = time.monotonic() + 60  # 32 broadcasts stand on their way between two ranks
            while comm._engine.failure.statuses.of(0).sequence < 90 and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises(UsageError):
                comm.broadcast("x")
        with pytest.raises(MismatchError) as raised:
            repeat(lambda: comm.broadcast(x, algorithm="chain"))
        return str(raised.value)

    far = "rank 0: a call that 63 or more have followed, and that is not known any more"
    for text in pycoll.spawn(rank, 4, timeout=120):
        assert far in text
        assert "rank 3: broadcast at tests/faults/test_out_of_step.py" in text
        assert "rank 2: broadcast(" in text


ALIKE: dict[str, Callable[[Communicator, int], Any]] = {
    "array": lambda c, peer: c.allreduce("x"),
    "op": lambda c, peer: c.reduce_scatter(np.ones(c.size), op="median"),
    "root": lambda c, peer: c.gatherv(np.ones(3), root=9),
    "queued": lambda c, peer: c.allgather("x", async_op=True),
    "plan": lambda c, peer: c.plan("nothing"),
    "list": lambda c, peer: c.allreduce([np.ones(3), "x"]),
    "object": lambda c, peer: c.broadcast_object(3, root=9),
    "split": lambda c, peer: c.split("red"),
    "barrier": lambda c, peer: c.barrier(timeout=-1),
    "exchange": lambda c, peer: c.exchange([("x", peer)], [(np.ones(2), peer)]),
}


def test_ranks_that_are_all_refused_stay_in_step() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        peer = 1 - comm.rank
        for number, (name, call) in enumerate(ALIKE.items()):
            work = comm.allreduce(np.full(1000, number), async_op=True)
            with pytest.raises(UsageError):
                call(comm, peer)
            assert work.wait()[0] == 2 * number, name
            assert comm.allreduce(np.ones(3))[0] == 2, name
            received = np.zeros(2)
            comm.exchange([(np.full(2, number), peer)], [(received.astype(int), peer)])
            assert comm.allgather_object((comm.rank, name)) == [(0, name), (1, name)]

    pycoll.spawn(rank, 2, timeout=120)


def test_every_message_of_an_exchange_that_was_refused_takes_its_place() -> None:
    def rank() -> list[float]:
        comm = pycoll.init(timeout=60)
        received = np.zeros(2)
        if comm.rank == 0:
            with pytest.raises(UsageError, match="is a str"):
                comm.exchange([("x", 1), ("x", 1)], [("x", 1)])
            comm.send(np.ones(2), 1)
            comm.recv(received, 1)
        else:
            for call in (comm.recv, comm.recv, comm.send):
                with pytest.raises(UsageError, match="x is a str"):
                    call("x", 0)
            comm.recv(received, 0)
            comm.send(received, 0)
        return list(received)

    assert pycoll.spawn(rank, 2, timeout=120) == [[1, 1], [1, 1]]


def test_a_message_that_was_refused_is_no_cause_of_what_comes_later() -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        transfer = comm.recv if comm.rank else comm.send
        with pytest.raises(UsageError, match="x is a str"):
            transfer("x", 1 - comm.rank)
        transfer(np.ones(3), 1 - comm.rank)
        with pytest.raises(MismatchError) as raised:
            repeat(lambda: transfer(np.ones(3, "f4" if comm.rank else "f8"), 1 - comm.rank))
        return str(raised.value)

    for text in pycoll.spawn(rank, 2, timeout=120):
        assert "3 elements float" in text
        assert "refused" not in text


class Stop(Exception):
    """What a signal handler raises."""


def stop_behind(comm: Communicator, inside: int) -> None:
    """Raise Stop as a signal handler does: right behind the native call that ends the next call.

    What is written to ``inside`` says that the call waits for others.
    """
    told = False

    def look(frame: Any, event: str, function: Any) -> None:
        nonlocal told
        name = getattr(function, "__name__", "")
        if event == "c_call" and name == "pc_resume" and not told:
            told = True
            os.write(inside, b"x")
        if event == "c_return" and name in ENDS and not bindings.comm_entered(comm._engine.comm):
            sys.setprofile(None)
            raise Stop

    sys.setprofile(look)


def stop_in(*where: str) -> None:
    """Raise Stop where the next call comes to a function of one of these names."""

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name in where:
            sys.setprofile(None)
            raise Stop

    sys.setprofile(look)


ENDS = {"call", "transfer", "exchange", "pc_run", "pc_resume", "pc_submit", "pc_pairwise"} | {
    f"pc_{name}" for name in ("pairwise_submit", "exchange", "post")
}
#: Forms of calls, and whether rank 1 has to wait in them until rank 0 has called, too.
STOPPED: dict[str, tuple[Callable[[Communicator, Any], Any], bool]] = {
    "at once": (lambda c, x: c.allreduce(x), False),
    "call": (lambda c, x: c.allreduce(x), True),
    "large": (lambda c, x: c.allreduce(np.ones(1 << 18)), True),
    "timeout": (lambda c, x: c.allreduce(x, timeout=60), True),
    "root": (lambda c, x: c.broadcast(x, 0, timeout=60), True),
    "queued": (lambda c, x: c.allreduce(x, async_op=True), False),
    "plan": (lambda c, x: c.plan("allreduce", x)(), True),
    "barrier": (lambda c, x: c.barrier(), True),
    "alltoallv": (lambda c, x: c.alltoallv(x, [2, 2], x + 0, [2, 2]), True),
    "queued gatherv": (lambda c, x: c.gatherv(x, [4, 4], async_op=True), False),
    "recv": (lambda c, x: c.recv(x, 0) if c.rank else c.send(x, 1), True),
    "send": (lambda c, x: c.send(x, 0) if c.rank else c.recv(x, 1), False),
    "queued send": (
        lambda c, x: c.send(x, 0, async_op=True) if c.rank else c.recv(x, 1),
        False,
    ),
    "exchange": (lambda c, x: c.exchange([(x, 1 - c.rank)], [(x + 0, 1 - c.rank)]), True),
}


@pytest.mark.parametrize("form", STOPPED)
def test_a_call_that_had_ended_is_not_counted_again_as_refused(form: str) -> None:
    ends = os.pipe()
    call, waits = STOPPED[form]

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        x = np.ones(4)
        for _ in range(2):  # then there are plans
            done = call(comm, x)
            if isinstance(done, pycoll.Work):
                done.wait()
        comm.barrier()
        if comm.rank == 1:
            stop_behind(comm, ends[1])
            with pytest.raises(Stop):
                call(comm, x)
        else:
            if waits:
                os.read(ends[0], 1)
            call(comm, x)
        for number in range(3):
            assert comm.allreduce(np.full(4, number))[0] == 2 * number
            received = np.zeros(2, int)
            comm.exchange([(np.full(2, number), 1 - comm.rank)], [(received, 1 - comm.rank)])
            assert list(received) == [number, number]
            assert comm.allgather_object(comm.rank) == [0, 1]
        comm.close()

    try:
        pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)


#: Forms of calls, and a function that runs in them before they begin.
BEFORE: dict[str, tuple[Callable[[Communicator, Any], Any], str]] = {
    "call": (lambda c, x: c.allreduce(x), "_request"),
    "its first line": (lambda c, x: c.allreduce(x), "_serve"),
    "timeout": (lambda c, x: c.allreduce(x, timeout=60), "_request"),
    "root": (lambda c, x: c.gather(x, root=np.int64(0)), "rank_of"),
    "queued": (lambda c, x: c.allreduce(x, async_op=True), "_request"),
    "list": (lambda c, x: c.allreduce([x, x + 1]), "pack"),
    "list plan": (lambda c, x: c.plan("allreduce", [x, x + 1])(), "pack"),
    "object": (lambda c, x: c.allgather_object(c.rank), "_pickled"),
    "alltoallv": (lambda c, x: c.alltoallv(x, [2, 2], x + 0, [2, 2]), "together"),
}


@pytest.mark.parametrize("form", BEFORE)
@pytest.mark.usefixtures("patient")
def test_a_call_that_was_stopped_before_it_began_takes_its_place(form: str) -> None:
    call, where = BEFORE[form]

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        for _ in range(3):
            comm.barrier()
        if comm.rank == 1:
            stop_in(where)
            with pytest.raises(Stop):
                call(comm, np.ones(4))
        with pytest.raises(MismatchError, match="refused with Stop"):
            repeat(lambda: comm.allreduce(np.ones(4)))

    pycoll.spawn(rank, 2, timeout=120)


#: Functions that run in messages before they begin, and what sends one.
SENDS: dict[str, Callable[[Communicator, Any], Any]] = {
    "_serve": lambda c, x: c.send(x, 0, timeout=60),
    "one": lambda c, x: c.send(x, 0, timeout=60),
    "_serve_all": lambda c, x: c.exchange([(x, 0)], timeout=60),
}


@pytest.mark.parametrize("where", SENDS)
@pytest.mark.usefixtures("patient")
def test_a_message_that_was_stopped_before_it_began_takes_its_place(where: str) -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        comm.barrier()
        if comm.rank == 1:
            stop_in(where)
            with pytest.raises(Stop):
                SENDS[where](comm, np.ones(4))
        with pytest.raises(MismatchError, match="refused with Stop"):
            repeat(lambda: comm.recv(np.ones(4), 1) if comm.rank == 0 else comm.send(np.ones(4), 0))

    pycoll.spawn(rank, 2, timeout=120)


#: Forms of calls that native code begins, and Python carries to their end.
UNFINISHED: dict[str, Callable[[Communicator, Any], Any]] = {
    "allreduce": lambda c, x: c.allreduce(x),
    "barrier": lambda c, x: c.barrier(),
    "recv": lambda c, x: c.recv(x, 0) if c.rank else c.send(x, 1),
    "exchange": lambda c, x: c.exchange([(x, 1 - c.rank)], [(x + 0, 1 - c.rank)]),
}


@pytest.mark.parametrize("form", UNFINISHED)
def test_a_call_that_was_stopped_before_python_carried_on_breaks_it_for_all(form: str) -> None:
    call = UNFINISHED[form]
    ends = os.pipe()

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        x = np.ones(4)
        for _ in range(2):  # then there are plans
            call(comm, x)
        comm._engine.bootstrap.barrier()  # nobody is inside a call
        if comm.rank == 1:
            stop_in(
                "_serve", "_serve_all"
            )  # as a signal handler does that runs as soon as Python does
            with pytest.raises(Stop):
                call(comm, x)
            os.write(ends[1], b"x")
        else:
            os.read(ends[0], 1)
        with pytest.raises(pycoll.BrokenError, match="Stop"):
            repeat(lambda: call(comm, x))

    try:
        pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)


def test_objects_that_were_stopped_half_way_break_it_for_all() -> None:
    ends = os.pipe()

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        assert comm.allgather_object(comm.rank) == [0, 1]
        if comm.rank == 1:
            stop_behind(comm, ends[1])  # the first of two calls
            with pytest.raises(Stop):
                comm.allgather_object(comm.rank)
        with pytest.raises(pycoll.BrokenError, match=r"Stop inside allgather_object\(\)"):
            comm.allgather_object(comm.rank)

    try:
        pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.usefixtures("patient")
def test_a_message_that_was_refused_takes_its_place(sends: bool) -> None:
    def rank() -> str:
        comm = pycoll.init(timeout=60)
        x = np.full(100_000, comm.rank)
        refuses = comm.rank == (0 if sends else 1)
        if refuses:
            with pytest.raises(UsageError, match="x is a str"):
                comm.send("x", 1) if sends else comm.recv("x", 0)
        with pytest.raises(
            MismatchError, match=r"refused with UsageError: \w+: x is a str"
        ) as raised:
            repeat((lambda: comm.recv(x, 0)) if comm.rank else (lambda: comm.send(x, 1)))
        return str(raised.value)

    for text in pycoll.spawn(rank, 2, timeout=120):
        assert "a message that was refused" in text or "recv(refused)" in text, text


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_the_place_of_a_refused_message_needs_nobody_who_leaves(way: str) -> None:
    def rank() -> list[float]:
        mine = jobs.current()
        assert mine is not None
        os.environ["PYCOLL_TRANSPORT"] = "tcp"
        with walk.apart(way, mine.rank):
            comm = pycoll.init(timeout=60)
        received = np.zeros(3)
        if comm.rank == 0:
            for call in (comm.recv, comm.send):
                with pytest.raises(UsageError, match="x is a str"):
                    call("x", 1)
        comm.barrier()
        if comm.rank == 0:
            deadline = time.monotonic() + 60
            while not comm._engine.failure.departed() and time.monotonic() < deadline:
                time.sleep(0.01)
            comm.recv(received, 2, async_op=True).wait()  # which looks at every lane
        elif comm.rank == 2:
            comm.send(np.ones(3), 0)
            comm.recv(received, 0)
        if comm.rank == 0:
            comm.send(received, 2)
        comm.close()
        return list(received)

    assert pycoll.spawn(rank, 3, timeout=120) == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]


OUTER: dict[str, Callable[[Communicator], Any]] = {
    "allreduce": lambda c: c.allreduce(np.ones(4))[0],
    "large": lambda c: c.allreduce(np.ones(1 << 18))[0],
    "plan": lambda c: c.plan("allreduce", np.ones(4))()[0],
    "gatherv": lambda c: c.gatherv(np.ones(1), [1, 1] if c.rank == 0 else None) is None or 2,
    "recv": lambda c: c.recv(np.ones(4), 1)[0] if c.rank == 0 else c.send(np.full(4, 2.0), 0) or 2,
}
NESTED: dict[str, Callable[[Communicator], Any]] = {
    "list": lambda c: c.allreduce([np.ones(4), np.ones(5)]),
    "queued list": lambda c: c.allreduce([np.ones(4), np.ones(5)], async_op=True),
    "call": lambda c: c.allreduce(np.ones(4)),
    "other": lambda c: c.broadcast(np.ones(5)),
    "bad": lambda c: c.allreduce(np.ones(4), op="median"),
    "send": lambda c: c.send(np.ones(4), 1),
    "bad send": lambda c: c.send("x", 1),
    "object": lambda c: c.broadcast_object(3),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("outer", OUTER)
def test_a_call_in_a_signal_handler_is_refused_and_the_outer_one_ends_well(
    outer: str, nested: str
) -> None:
    ends = os.pipe()

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        comm.allreduce(np.ones(4))
        refused: list[str] = []

        def handler(*_: object) -> None:
            with pytest.raises(UsageError) as raised:
                NESTED[nested](comm)
            refused.append(str(raised.value))
            os.write(ends[1], b"x")

        def strike() -> None:
            while not bindings.comm_entered(comm._engine.comm):
                pass
            os.kill(os.getpid(), signal.SIGUSR1)

        if comm.rank == 0:
            signal.signal(signal.SIGUSR1, handler)
            threading.Thread(target=strike).start()
        else:
            os.read(ends[0], 1)  # rank 0 waits, and its handler has run
        assert OUTER[outer](comm) in (2, True)
        assert comm.allreduce(np.ones(4))[0] == 2
        assert comm.allgather_object(comm.rank) == [0, 1]
        assert all(
            text.startswith(("this thread is inside a call", "op is", "send: x is a str"))
            for text in refused
        )
        comm.close()

    try:
        pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)


def test_a_call_in_a_signal_handler_amid_the_first_import() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=60)
        refused: list[str] = []

        def handler(*_: object) -> None:
            with pytest.raises(UsageError) as raised:
                comm.allreduce(np.ones(4))
            refused.append(str(raised.value))

        class Strikes(importlib.abc.MetaPathFinder):
            def find_spec(self, name: str, *_: object) -> None:
                if name == "pycoll.runtime.host.executor" and not refused:
                    os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handler)
        for name in (
            "pycoll.runtime.dispatch",
            "pycoll.runtime.host.executor",
        ):  # the test has imported them
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Strikes())
        assert comm.allreduce(np.ones(4))[0] == 2
        assert len(refused) == 1
        assert "still being imported" in refused[0]
        comm.close()

    pycoll.spawn(rank, 2, timeout=120)


def test_a_handler_that_lets_it_through_breaks_the_call_that_it_ended() -> None:
    ends = os.pipe()

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        comm.allreduce(np.ones(4))

        def strike() -> None:
            while not bindings.comm_entered(comm._engine.comm):
                pass
            os.kill(os.getpid(), signal.SIGUSR1)

        if comm.rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: comm.allreduce(np.ones(4)))
            threading.Thread(target=strike).start()
            with pytest.raises(UsageError, match="this thread is inside a call") as raised:
                comm.allreduce(np.ones(4))
            os.write(ends[1], b"x")
            return str(raised.value)
        os.read(ends[0], 1)
        with pytest.raises(
            pycoll.BrokenError, match=r"rank 0 .* gave up: BusyError inside"
        ) as told:
            repeat(lambda: comm.allreduce(np.ones(4)))
        return str(told.value)

    try:
        pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)
