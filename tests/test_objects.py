"""Objects of Python between ranks, and what happens where one cannot be pickled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import objects

pytestmark = pytest.mark.native


class Refusing:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("not me")


class Exploding:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def of(rank: int) -> Any:
    """An object that differs in kind and length from rank to rank."""
    return [None, {"rank": rank}, "x" * (1 << (3 * rank)), np.arange(rank * 1000)][rank % 4]


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b) if isinstance(b, np.ndarray) else bool(a == b)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_object_arrives(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            mine = of(comm.rank)
            for root in range(size):
                is_root = comm.rank == root
                assert same(comm.broadcast_object(mine if is_root else None, root), of(root))
                gathered = comm.gather_object(mine, root, timeout=60)
                if is_root:
                    assert all(same(gathered[r], of(r)) for r in range(size))
                else:
                    assert gathered is None
                every = [of(r + root) for r in range(size)] if is_root else None
                assert same(comm.scatter_object(every, root), of(comm.rank + root))
            gathered = comm.allgather_object(mine)
            assert all(same(gathered[r], of(r)) for r in range(size))
            assert gathered[comm.rank] is mine

    pycoll.spawn(rank, size, timeout=100)


def test_one_long_object_takes_no_room_of_its_length_for_each_rank() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            mine = b"x" * (objects._WASTE_BYTES * 2 if comm.rank == 1 else comm.rank)
            lengths = [len(found) for found in comm.allgather_object(mine)]
            assert lengths == [0, objects._WASTE_BYTES * 2, 2]
            assert not [call for call, _ in comm._launch.plans._plans if call.count > 5 << 20]

    pycoll.spawn(rank, 3, timeout=60)


def test_few_plans_serve_many_lengths() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for n in range(500):
                assert comm.broadcast_object("x" * n) == "x" * n
            assert len(comm._launch.plans._plans) < 10

    pycoll.spawn(rank, 2, timeout=60)


def test_what_cannot_be_pickled_fails_on_all_ranks_and_harms_nothing() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r = comm.rank
            for call, at in (
                (lambda: comm.broadcast_object(Refusing(), 1), 1),
                (lambda: comm.allgather_object(Refusing() if r == 2 else r), 2),
                (lambda: comm.gather_object(Refusing() if r == 2 else r, 0), 2),
                (lambda: comm.scatter_object([1, Refusing(), 3], 0), 0),
            ):
                want = ZeroDivisionError if r == at else pycoll.UsageError
                told = "not me" if r == at else f"_object: rank {at} could not pickle its object"
                with pytest.raises(want, match=told):
                    call()
            for wrong, what in ((None, "nothing"), ([1], "1 objects")):
                told = f"objs is {what}, want 3 objects" if r == 0 else "rank 0 could not pickle"
                with pytest.raises(pycoll.UsageError, match=told):
                    comm.scatter_object(wrong)
            with pytest.raises(pycoll.UsageError, match="broadcast_object: root is 3, want a rank"):
                comm.broadcast_object(1, 3)
            if r == 0:
                assert isinstance(comm.broadcast_object(Exploding()), Exploding)
            else:
                with pytest.raises(ValueError, match="no number"):
                    comm.broadcast_object()
            assert comm.allgather_object(r) == [0, 1, 2]

    pycoll.spawn(rank, 3, timeout=60)


@pytest.mark.parametrize("method", ["broadcast", "allgather", "gather", "scatter"])
def test_a_rank_that_stops_half_way_keeps_nobody_waiting(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = objects._room

    def rank() -> None:
        comm = pycoll.init(timeout=60)

        def call() -> None:
            obj = ["x"] * 3 if method == "scatter" else "x"
            getattr(comm, f"{method}_object")(obj)
            comm.barrier()  # what the others need not have waited for is over for them

        def without_memory(length: int, pickles: list[bytes]) -> Any:
            if comm.rank == 0:
                raise MemoryError("no room")
            return room(length, pickles)

        monkeypatch.setattr(objects, "_room", without_memory)
        if comm.rank == 0:
            with pytest.raises(MemoryError, match="no room"):
                call()
        else:
            told = rf"rank 0 \(.*\) gave up: MemoryError inside {method}_object"
            with pytest.raises(pycoll.BrokenError, match=told):
                call()

    pycoll.spawn(rank, 3, timeout=30)


def test_an_object_meets_nothing_but_its_like() -> None:
    def rank() -> None:
        comm = pycoll.init(timeout=20)

        def call() -> None:
            comm.broadcast(np.zeros(1, "int64")) if comm.rank else comm.broadcast_object("x")
            comm.barrier()  # a root may be through before the others look

        with pytest.raises(pycoll.MismatchError, match="broadcast"):
            call()

    pycoll.spawn(rank, 2, timeout=60)
