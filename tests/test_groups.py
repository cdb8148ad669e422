"""Communicators of some of the ranks: who is in them, and that each lives its own life."""

from __future__ import annotations

import os
import signal
from typing import Any

import collective_checks as checks
import numpy as np
import pytest

import pycoll

pytestmark = pytest.mark.native


def ranks(size: int, function: Any) -> list[Any]:
    return pycoll.spawn(function, size, timeout=100)


def total(comm: pycoll.Communicator, value: float) -> float:
    return float(comm.allreduce(np.full(1000, float(value)))[-1])


def test_ranks_are_split_by_color_and_ordered_by_key() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r = comm.rank
            sub = comm.split(r % 2, -r)
            assert sub is not None
            mine = [q for q in reversed(range(5)) if q % 2 == r % 2]
            assert (sub.rank, sub.size) == (mine.index(r), len(mine))
            assert (sub.local_rank, sub.local_size) == (sub.rank, sub.size)
            assert sub.launcher == "spawn"
            assert repr(sub) == f"<pycoll.Communicator rank {sub.rank} of {sub.size}>"
            assert sub.allgather(np.full(1, r)).tolist() == mine
            assert total(sub, r) == sum(mine)
            assert total(comm, r) == 10
            equal = comm.split(-7, 3)  # equal keys: in order of rank
            assert equal is not None
            assert equal.rank == r
            none = comm.split(None if r == 2 else 0)
            assert (none is None) == (r == 2)
            if none is not None:
                assert total(none, r) == 8
                none.close()
            equal.close()
            sub.close()

    ranks(5, rank)


def test_groups_of_groups_do_all_that_a_communicator_does() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            rows, columns = comm.split(comm.rank // 3), comm.split(comm.rank % 3)
            assert rows is not None
            assert columns is not None
            twin = rows.dup()
            pair = rows.split(0 if rows.rank < 2 else None, key=-rows.rank)
            for sub in (rows, columns, twin, *([pair] if pair else [])):
                checks.every_form(sub)
                checks.every_table(sub)
                sub.barrier()
            # One after the other in time, and several at once.
            x, y = np.full(70_000, 1.0), np.full(70_000, 1.0)
            works = [rows.allreduce(x, async_op=True), twin.allreduce(y, async_op=True)]
            assert total(columns, comm.rank) == 2 * (comm.rank % 3) + 3
            for work in reversed(works):
                assert (work.wait() == 3).all()

    ranks(6, rank)


def test_a_size_of_one() -> None:
    def rank() -> None:
        with pycoll.init() as comm, comm.split(comm.rank) as alone, alone.dup() as twin:
            for sub in (alone, twin):
                checks.every_form(sub)
            assert twin.broadcast_object("x") == "x"

    ranks(2, rank)


@pytest.mark.parametrize("first", ["parent", "child", "mixed"])
def test_they_close_in_any_order(first: str) -> None:
    def rank() -> None:
        comm = pycoll.init()
        sub, twin = comm.split(0, -comm.rank), comm.dup()
        assert sub is not None
        order = [comm, sub, twin]
        if first == "child" or (first == "mixed" and comm.rank % 2):
            order.reverse()
        if first != "mixed":
            order.pop(0).close()
        for at, left in enumerate(order):
            if first != "mixed":
                for each in order[at:]:
                    assert total(each, 1) == 3
            left.close()
        for gone in (comm, sub, twin):
            with pytest.raises(pycoll.ClosedError, match="communicator is closed"):
                gone.split(0)

    ranks(3, rank)


def test_a_child_lives_on_without_a_reference_to_its_parent() -> None:
    def rank() -> None:
        sub = pycoll.init().split(0)
        assert sub is not None
        assert total(sub, 1) == 2
        sub.close()

    ranks(2, rank)


def test_a_failure_of_one_leaves_the_others_usable() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            sub, twin = comm.split(comm.rank // 2), comm.dup()
            assert sub is not None
            if comm.rank < 2:
                wrong = np.ones(3 + comm.rank)
                with pytest.raises(pycoll.MismatchError, match="called different things"):
                    sub.allreduce(wrong)
                with pytest.raises(pycoll.BrokenError):
                    sub.allreduce(np.ones(3))
            else:
                assert total(sub, 1) == 2
            assert total(comm, 1) == 4
            assert total(twin, 1) == 4
            again = comm.split(comm.rank // 2)
            assert again is not None
            assert total(again, 1) == 2
            sub._engine.leave()

    ranks(4, rank)


def test_a_dead_process_breaks_all_that_it_belongs_to_and_nothing_else() -> None:
    def rank() -> None:
        comm = pycoll.init()
        sub, twin = comm.split(comm.rank // 2), comm.dup()
        assert sub is not None
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        for broken in (comm, twin, *([sub] if comm.rank == 2 else [])):
            with pytest.raises((pycoll.PeerLostError, pycoll.BrokenError), match="rank"):
                broken.barrier(timeout=60)
        if comm.rank < 2:
            for _ in range(100):
                assert total(sub, 1) == 2

    found = pycoll.spawn(rank, 4, timeout=100, check=False)
    assert isinstance(found[3], pycoll.PeerLostError)
    assert found[:3] == [None] * 3


@pytest.mark.usefixtures("patient")
def test_other_calls_are_no_split() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=30)
        with pytest.raises(pycoll.MismatchError, match=r"split\(\) at .*dup\(\) at "):
            comm.split(0) if comm.rank == 0 else comm.dup()

    ranks(2, rank)


def test_what_split_refuses() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for color, key, message in (
                ("red", 0, "split: color is 'red', want an integer"),
                (1 << 63, 0, "split: color is 9223372036854775808, want an integer of at most 64"),
                (0.0, 0, r"split: color is 0\.0, want an integer"),
                (0, 0.5, "split: key is 0.5, want an integer"),
            ):
                with pytest.raises(pycoll.UsageError, match=message):
                    comm.split(color, key)  # type: ignore[arg-type]

    ranks(1, rank)


def test_many_come_and_go() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for turn in range(60):
                with comm.dup() as sub:
                    assert total(sub, turn) == 2 * turn

    ranks(2, rank)
