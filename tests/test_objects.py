"""Objects of Python between ranks, and what happens where one cannot be pickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import objects
from pycoll.runtime.pickle_header import PickleHeader, PickleHeaders
from pycoll.runtime.plan.options import CallOptions

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
            assert not [
                call for call, _ in comm._collectives.launch.plans._plans if call.count > 5 << 20
            ]

    pycoll.spawn(rank, 3, timeout=60)


def test_behind_a_pickle_nothing_of_this_process_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle travels with room behind it, for few lengths are used; elsewhere others may read."""
    vouched, empty = objects._vouched, np.empty

    def used(*arguments: Any, **named: Any) -> np.ndarray:
        array = empty(*arguments, **named)
        array.view(np.uint8)[...] = 0xAA  # as what this memory held before
        return array

    def rank() -> None:
        with pycoll.init() as comm:
            seen: list[int] = []

            def look(header: PickleHeader, data: np.ndarray, who: int, options: CallOptions) -> Any:
                behind = data[header.length :]
                seen.append(len(behind))
                assert not behind.any()
                return vouched(header, data, who, options)

            monkeypatch.setattr(np, "empty", used)
            monkeypatch.setattr(objects, "_vouched", look)
            for call in CALLS.values():
                call(comm)
            comm.allgather_object("x" * (objects._WASTE_BYTES * 2 + 100 if comm.rank == 1 else 1))
            monkeypatch.undo()
            assert max(seen) > 100

    pycoll.spawn(rank, 3, timeout=60)


def test_few_plans_serve_many_lengths() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for n in range(500):
                assert comm.broadcast_object("x" * n) == "x" * n
            assert len(comm._collectives.launch.plans._plans) < 10

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
            for wrong, what in ((None, "None"), ([1], "1 objects")):
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


class Evil:
    """A pickle that leaves a file behind wherever it is loaded."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> Any:
        return Path.touch, (self.at,)


CALLS = {
    "broadcast": lambda comm: comm.broadcast_object("x" * 400, 0),
    "allgather": lambda comm: comm.allgather_object("x" * 400),
    "gather": lambda comm: comm.gather_object("x" * 400, 1),
    "scatter": lambda comm: comm.scatter_object(["x" * 400] * 3, 0),
}


@pytest.mark.parametrize("place", ["the header", "a byte", "all of it"])
@pytest.mark.parametrize("method", CALLS)
def test_what_somebody_changed_on_its_way_is_not_loaded(
    method: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of collectives have no seal; here they change just where they arrive, at rank 1."""
    evidence = tmp_path / "evidence"
    sender = 2 if method == "gather" else 0
    loads = pickle.loads

    def change(data: np.ndarray) -> None:
        if place != "all of it":
            data[len(data) // 2] ^= 1
            return
        evil = np.frombuffer(pickle.dumps(Evil(evidence)), np.uint8)
        data[: len(evil)] = evil

    def rank() -> None:
        comm = pycoll.init(timeout=60)
        secret = comm._engine.bootstrap.secret
        comm._objects.headers = PickleHeaders(secret, comm.rank, leave=True)  # as between hosts
        read = PickleHeaders.read
        vouched = objects._vouched

        def read_changed(
            self: PickleHeaders, what: str, call: int, data: bytes, who: int, *to: int
        ) -> PickleHeader:
            came = np.frombuffer(bytearray(data), np.uint8)
            if who == sender:
                change(came)
            return read(self, what, call, came.tobytes(), who, *to)

        def vouched_changed(
            header: PickleHeader, data: np.ndarray, who: int, options: CallOptions
        ) -> Any:
            if who == sender:
                change(data)
            return vouched(header, data, who, options)

        if comm.rank == 1:
            monkeypatch.setattr(pickle, "loads", lambda data: pytest.fail(f"loaded {data!r}"))
            if place == "the header":
                monkeypatch.setattr(PickleHeaders, "read", read_changed)
            else:
                monkeypatch.setattr(objects, "_vouched", vouched_changed)

        def call() -> None:
            CALLS[method](comm)
            comm.barrier()

        thing = "pickle header" if place == "the header" else "object"
        if comm.rank == 1:
            told = rf"^{method}_object\(.*\): what came for rank {sender}'s {thing} is not"
            with pytest.raises(pycoll.TransportError, match=told):
                call()
        else:
            told = rf"rank 1 \(.*\) gave up: TransportError inside {method}_object"
            with pytest.raises(pycoll.BrokenError, match=told):
                call()
        monkeypatch.setattr(pickle, "loads", loads)

    pycoll.spawn(rank, 3, timeout=60)
    assert not evidence.exists()
    loads(pickle.dumps(Evil(evidence)))
    assert evidence.exists()  # so it would have been seen


@pytest.mark.usefixtures("patient")
def test_ranks_that_are_at_different_calls_hear_so() -> None:
    """A call that failed on one rank alone counts; what follows is not taken for it."""

    def rank() -> None:
        comm = pycoll.init(timeout=20)
        assert comm.allgather_object(comm.rank) == [0, 1]
        if comm.rank == 0:
            with pytest.raises(pycoll.UsageError, match="root is 7"):
                comm.broadcast_object("x", 7)

        def call() -> None:
            comm.broadcast_object("x")
            comm.barrier()

        told = r"rank 0: broadcast_object at .*test_objects.py:\d+, refused with UsageError: .*is 7"
        with pytest.raises(pycoll.MismatchError, match=told):
            call()

    pycoll.spawn(rank, 2, timeout=60)


def test_a_job_that_anybody_could_join_serves_no_objects() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm._engine.bootstrap.public = True
            for method, call in CALLS.items():
                told = rf"^{method}_object: anybody who reaches rank 0 .*: set PYCOLL_SECRET to"
                with pytest.raises(pycoll.UsageError, match=told):
                    call(comm)
            assert comm.allreduce(np.ones(1))[0] == 3.0

    pycoll.spawn(rank, 3, timeout=60)
