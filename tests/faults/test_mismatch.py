"""Ranks that call different things: every rank raises, and says who called what, and where."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import Communicator, MismatchError

Step = Callable[[Communicator], Any]

ONES = np.ones(10, "float32")

CASES: dict[str, tuple[tuple[Step, str], tuple[Step, str]]] = {
    "op": (
        (lambda c: c.allreduce(ONES.copy()), "allreduce(sum, float32, 10 elements)"),
        (lambda c: c.allreduce(ONES.copy(), op="max"), "allreduce(max, float32, 10 elements)"),
    ),
    "dtype": (
        (lambda c: c.allreduce(ONES.copy()), "allreduce(sum, float32, 10 elements)"),
        (lambda c: c.allreduce(ONES.view("int32")), "allreduce(sum, int32, 10 elements)"),
    ),
    "count": (
        (lambda c: c.allreduce(np.ones(1)), "allreduce(sum, float64, 1 element)"),
        (lambda c: c.allreduce(np.ones(100_000)), "allreduce(sum, float64, 100000 elements)"),
    ),
    "algorithm": (
        (lambda c: c.allreduce(np.ones(9), algorithm="ring"), "float64, 9 elements, ring)"),
        (lambda c: c.allreduce(np.ones(9), algorithm="two_shot"), "9 elements, two_shot)"),
    ),
    "collective": (
        (lambda c: c.allreduce(ONES.copy()), "allreduce(sum, float32, 10 elements)"),
        (lambda c: c.barrier(), "barrier()"),
    ),
    "plan": (
        (lambda c: c.plan("allreduce", ONES.copy())(), "allreduce(sum, float32, 10 elements)"),
        (lambda c: c.barrier(), "barrier()"),
    ),
    "list": (
        (lambda c: c.allreduce([np.ones(4), np.ones(6)]), "2 arrays of 10 elements in all)"),
        (lambda c: c.allreduce(np.ones(10)), "allreduce(sum, float64, 10 elements)"),
    ),
    "pieces": (
        (lambda c: c.allreduce([np.ones(4), np.ones(6)]), "2 arrays of 10 elements in all)"),
        (lambda c: c.allreduce([np.ones(5), np.ones(5)]), "2 arrays of 10 elements in all)"),
    ),
    "async": (
        (lambda c: c.allreduce(np.ones(3), async_op=True).wait(), "float64, 3 elements)"),
        (lambda c: c.allreduce(np.ones(4), async_op=True).wait(), "float64, 4 elements)"),
    ),
    "registered": (
        (lambda c: c.allreduce(c.empty(1 << 20)), "allreduce(sum, float64, 1048576 elements)"),
        (lambda c: c.allreduce(c.empty(1 << 19)), "allreduce(sum, float64, 524288 elements)"),
    ),
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("patient")
def test_every_rank_names_every_call_and_line(case: str, size: int) -> None:
    (step, text), (odd, odd_text) = CASES[case]

    def rank() -> str:
        comm = pycoll.init()
        comm.barrier()
        with pytest.raises(MismatchError) as raised:
            (odd if comm.rank == size - 1 else step)(comm)
        with pytest.raises(pycoll.BrokenError, match="an earlier failure broke") as later:
            comm.barrier()
        assert repr(later.value.__cause__) == repr(raised.value)
        return str(raised.value)

    for message in pycoll.spawn(rank, size, timeout=120):
        assert message.startswith("ranks called different things: rank 0: ")
        said = re.findall(r"rank (\d+): (.*?) at \S*test_mismatch\.py:(\d+)", message)
        assert [int(rank) for rank, _, _ in said] == list(range(size)), message
        for rank, call, _ in said:
            assert (odd_text if int(rank) == size - 1 else text) in call, message
        lines = {line for _, _, line in said}
        assert len(lines) == (1 if case == "op" and step is odd else 2), message


def test_two_algorithms_of_one_name_are_told_apart() -> None:
    def rank() -> str:
        comm = pycoll.init()
        rounds = 1 + comm.rank

        @pycoll.algorithm(pycoll.allreduce)
        def mine(b: pycoll.ScheduleBuilder) -> None:
            b.chunks(rounds)
            for i in range(rounds):
                b.send(b.output[i], to=1 - b.rank)
                b.recv_reduce(b.output[i], frm=range(b.size))

        with pytest.raises(MismatchError, match=r"elements, mine [0-9a-f]{8}\) at ") as raised:
            comm.allreduce(np.ones(100), algorithm=mine)
        return str(raised.value)

    pycoll.spawn(rank, 2, timeout=60)


def test_a_rank_that_comes_late_is_told_too() -> None:
    def rank() -> str:
        comm = pycoll.init()
        pids = np.zeros(3, "int64")
        pids[comm.rank] = os.getpid()
        comm.allreduce(pids)
        ends = [os.pidfd_open(pid) for pid in pids[:2]]
        comm.barrier()
        if comm.rank == 2:  # comes when the others have given up waiting for it
            for end in ends:
                select.select([end], [], [])
        with pytest.raises(MismatchError) as raised:
            comm.allreduce(np.ones(comm.rank + 1))
        return str(raised.value)

    first, second, third = pycoll.spawn(rank, 3, timeout=60)
    assert "rank 2: has not made call 3 yet" in first
    assert "rank 2: has not made call 3 yet" in second
    assert "rank 2: allreduce(sum, float64, 3 elements) at " in third


def for_ever(call: Callable[[], Any]) -> None:
    while True:
        call()


@pytest.mark.parametrize("later", [0, 1, 20])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.usefixtures("patient")
def test_a_call_that_a_rank_has_returned_from_is_named(later: int, goes_on: bool) -> None:
    ends = os.pipe()

    def rank() -> str:
        comm = pycoll.init(timeout=60)
        comm.barrier()
        if comm.rank == 0:
            for _ in range(1 + later):  # small: the root waits for nobody
                comm.broadcast(ONES.copy())
            os.write(ends[1], b"x")
            if not goes_on:
                with pytest.raises(MismatchError) as raised:
                    comm.barrier()
                return str(raised.value)
            with pytest.raises(MismatchError) as raised:
                for_ever(lambda: comm.reduce(np.ones(3), root=1))
            return str(raised.value)
        os.read(ends[0], 1)
        with pytest.raises(MismatchError) as raised:
            comm.allreduce(ONES.copy())
        return str(raised.value)

    try:
        messages = pycoll.spawn(rank, 2, timeout=120)
    finally:
        for end in ends:
            os.close(end)
    for message in messages:
        assert "rank 0: broadcast(float32, 10 elements, root 0), which has ended there" in message
        assert "rank 1: allreduce(sum, float32, 10 elements) at " in message
