"""Every collective on ranks that are processes, against numpy; and what its arrays may be."""

from __future__ import annotations

import array
import inspect
import itertools
from typing import Any

import collective_checks as checks
import numpy as np
import pytest

import pycoll
from pycoll import algorithms, collectives
from pycoll.runtime.plan.request import KINDS, NUMBERS
from pycoll.schedule import COLLECTIVES

pytestmark = pytest.mark.native


def ranks(size: int, function: Any, *arguments: Any) -> list[Any]:
    return pycoll.spawn(function, size, *arguments, timeout=200)


def test_numbers_are_those_of_the_table() -> None:
    for number, name in enumerate(COLLECTIVES):
        assert getattr(collectives, name.upper()) == number
    assert set(checks.COLLECTIVES) == set(COLLECTIVES)


def test_rows_say_what_the_collectives_do() -> None:
    assert [row.name for row in collectives.ROWS] == list(NUMBERS)
    for row in collectives.ROWS[:-1]:
        c = COLLECTIVES[row.name]
        apart = KINDS[row.name].out == "out"  # else the result goes to x
        assert row.x_at_root == (apart and not c.in_blocks(1, 3))
        assert row.out_at_root == (not c.out_blocks(1, 3))
        assert row.result


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_method_takes_what_all_take(name: str) -> None:
    parameters = inspect.signature(getattr(pycoll.Communicator, name)).parameters
    wanted = ["async_op", "algorithm", "timeout", *["order"] * COLLECTIVES[name].reduces]
    assert list(parameters)[-len(wanted) :] == wanted
    assert ("root" in parameters) == COLLECTIVES[name].rooted
    assert ("op" in parameters) == COLLECTIVES[name].reduces


@pytest.mark.parametrize("size", range(1, 18))
def test_every_count_at_every_size(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checks.every_count(comm)
            checks.every_table(comm)

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_dtype_and_operator(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checks.every_dtype(comm)

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_queued_persistent_and_direct_calls(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checks.every_form(comm)

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_every_algorithm_by_name(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checks.every_algorithm(comm, algorithms.names)

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_transfer_and_group(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            checks.every_group(comm)

    ranks(size, rank)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_thousand_mixed_calls_on_several_communicators(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm, comm.dup() as twin, comm.split(comm.rank // 2) as part:
            checks.mixed([comm, twin, part], 1000, seed=size)

    ranks(size, rank)


@pytest.mark.mpi
@pytest.mark.parametrize("size", [2, 4])
def test_under_a_launcher(launcher, size: int) -> None:
    launcher.run(size, "tests/collective_checks.py", timeout=300)


def test_shapes_of_new_arrays() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            r, root = comm.rank, comm.rank == 2
            assert comm.allgather(np.float32(r)).tolist() == [0, 1, 2]
            assert comm.allgather(np.full((2, 5), r)).shape == (6, 5)
            assert comm.allgather(np.full((0, 5), r)).shape == (0, 5)
            stacked = np.empty((3, 2, 5))
            assert comm.allgather(np.full((2, 5), r * 1.0), stacked) is stacked
            assert (stacked[2] == 2).all()
            assert comm.reduce_scatter(np.ones((6, 4))).shape == (2, 4)
            assert comm.alltoall(np.ones((3, 4), "int8")).shape == (3, 4)
            gathered = comm.gather(np.full((2, 5), r), root=2)
            assert (gathered.shape if root else gathered) == ((6, 5) if root else None)
            x = np.arange(12).reshape(6, 2)
            part = comm.scatter(x if root else None, None if root else np.empty((2, 2), int), 2)
            assert part.tolist() == x[2 * r : 2 * r + 2].tolist()
            assert np.shares_memory(part, x) == root
            assert comm.allgatherv(np.ones((r, 7)), [0, 7, 14]).shape == (21,)
            assert comm.reduce_scatterv(np.ones((2, 3)), [1, 0, 5]).shape == ([1, 0, 5][r],)

    ranks(3, rank)


def test_torch_tensors_and_the_buffer_protocol() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            r, root = comm.rank, comm.rank == 1
            for _ in range(3):  # by the slow path, then from the cache
                for kind in (torch.bfloat16, torch.float64, torch.int32):
                    x = torch.arange(6).add(10 * r).to(kind).reshape(3, 2)
                    every = torch.cat([torch.arange(6).add(10 * q).to(kind) for q in range(3)])
                    got = comm.allgather(x)
                    assert (got.dtype, got.shape) == (kind, (9, 2))
                    assert torch.equal(got.reshape(-1), every)
                    out = torch.empty(18, dtype=kind)
                    assert comm.allgather(x, out) is out
                    assert torch.equal(out, every)
                    assert comm.alltoall(x)[:, 0].tolist() == [2 * r, 10 + 2 * r, 20 + 2 * r]
                    total = every.reshape(3, 6).sum(0).to(kind)
                    assert torch.equal(comm.reduce_scatter(x)[0], total[2 * r : 2 * r + 2])
                    assert comm.gather(x, out, root=1) is (out if root else None)
                    assert not root or torch.equal(out, every)
                    done = comm.reduce(x.clone(), root=1)
                    assert torch.equal(done.reshape(-1), total) if root else done is None
                    part = torch.empty(2, dtype=kind)
                    assert comm.scatter(x if root else None, part, 1) is part
                    assert part.tolist() == [10 + 2 * r, 11 + 2 * r]
                    view = comm.scatter(x, None, 1) if root else comm.scatter(None, part, 1)
                    assert view.reshape(-1).tolist() == [10 + 2 * r, 11 + 2 * r]
                    assert comm.broadcast(x, root=1) is x
                    assert x.reshape(-1).tolist() == list(range(10, 16))
                doubles = array.array("d", [r, r + 1.0])
                assert comm.allgather(doubles).tolist() == [0, 1, 1, 2, 2, 3]
                assert comm.broadcast(doubles, 2) is doubles
                assert doubles.tolist() == [2, 3]
                raw = bytearray(6)
                assert comm.allgather(bytes([r, r + 5]), raw) is raw
                assert raw == bytes([0, 5, 1, 6, 2, 7])
                assert comm.alltoall(bytes([r, r + 1, r + 2])).tolist() == [r, r + 1, r + 2]
                assert (
                    comm.scatter(bytearray(b"abcdef"), raw[:0] or bytearray(2))
                    == b"abcdef"[2 * r : 2 * r + 2]
                )

    ranks(3, rank)


def test_lists_of_arrays_are_broadcast_together() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            counts = (3, 0, 1, 500, 300_000, 7)
            for root in range(3):
                x = [np.full(c, comm.rank, k) for c in counts for k in ("float32", "int64")]
                done = comm.broadcast(x, root)
                assert all(a is b for a, b in zip(done, x, strict=True))
                assert all((a == root).all() for a in x)
                work = comm.broadcast([a + a.dtype.type(comm.rank) for a in x], 1, async_op=True)
                assert all((a == root + 1).all() for a in work.wait())
            assert comm.broadcast([]) == []
            with pytest.raises(pycoll.UsageError, match="broadcast: root is 3, want a rank, 0 to"):
                comm.broadcast([np.ones(3)], 3)

    ranks(3, rank)


def test_all_to_all_in_one_array_is_served_by_a_copy() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            want = [float(10 * q + comm.rank) for q in range(3)]

            def fresh() -> np.ndarray:
                return 10.0 * comm.rank + np.arange(3)

            for _ in range(3):
                x = fresh()
                assert comm.alltoall(x, x) is x
                assert x.tolist() == want
                x = fresh()
                assert comm.alltoall(x, x[:]).tolist() == want  # the same memory by another name
                x = fresh()
                assert comm.alltoall(x, x, async_op=True).wait() is x
                assert x.tolist() == want
            plan = comm.plan("alltoall", x := fresh(), x)
            for _ in range(2):
                x[:] = fresh()
                assert plan().tolist() == want
            with pytest.raises(pycoll.UsageError, match="out begins 8 bytes from x and overlaps"):
                comm.alltoall((y := np.ones(4))[:3], y[1:])

    ranks(3, rank)


def test_calls_of_all_kinds_in_flight_keep_their_order() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.full(6, comm.rank + 1.0)
            works = [
                comm.allreduce(x, async_op=True),  # 6
                comm.broadcast(x, 1, async_op=True),  # 6
                comm.reduce(x, root=2, async_op=True),  # 18 on rank 2
                comm.barrier(async_op=True),
                comm.allgather(x, async_op=True),
                comm.alltoall(x, async_op=True),
            ]
            comm.allreduce(x, op="max")
            assert (x == 18).all()
            values = [work.wait() for work in works]
            assert values[0] is values[1] is x
            assert values[2] is (x if comm.rank == 2 else None)
            assert values[3] is None
            assert values[4].tolist() == [6.0] * 12 + [18.0] * 6
            assert values[5].tolist() == [6.0] * 4 + [18.0] * 2
            comm.barrier(timeout=30)

    ranks(3, rank)


def test_what_cannot_be_served_is_refused_with_the_cure() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(6)
            for call, message in (
                (lambda: comm.broadcast(x, 2), "broadcast: root is 2, want a rank, 0 to 1"),
                (lambda: comm.reduce(x, root="0"), "reduce: root is '0', want a rank"),
                (lambda: comm.gather(x, root=-1), "gather: root is -1, want a rank"),
                (lambda: comm.broadcast(x.T[::2]), "broadcast: x is not contiguous"),
                (lambda: comm.broadcast(b"ab"), "broadcast: x is read-only"),
                (lambda: comm.reduce(x, op="median"), "op is 'median', want one of sum"),
                (lambda: comm.allgather(x, algorithm="rign"), "algorithm is 'rign', want one of"),
                (lambda: comm.alltoall(x, timeout=-1), "alltoall: timeout is -1, want seconds"),
                (lambda: comm.allgatherv(x, [3]), r"counts is \[3\], want 2 numbers"),
                (lambda: comm.plan("allgahter", x), "collective is 'allgahter', want one of allr"),
                (lambda: comm.plan("reduce", x, counts=[6, 6]), "want one of allgather, reduce_s"),
                (lambda: comm.plan("broadcast", x, x), "out is given, but the result goes to x"),
            ):
                with pytest.raises(pycoll.UsageError, match=message):
                    call()
            assert (comm.allreduce(x) == 2).all()

    ranks(2, rank)


def test_what_a_known_plan_is_called_with_is_looked_at_as_the_first_time() -> None:
    torch = pytest.importorskip("torch")

    class Units(np.ndarray):
        """A subclass, as libraries of physical units have it."""

    def rank() -> None:
        with pycoll.init() as comm:
            whole = np.arange(9.0)
            overlaps = "out begins 8 bytes from x and overlaps it; pass the same array"
            for make in (np.asarray, lambda a: a.view(Units), memoryview, torch.from_numpy):
                for turn in range(3):  # by the slow path, then by the plan that is known
                    x, out = make(np.full(8, comm.rank + 1.0)), make(np.zeros(8))
                    assert comm.allreduce(x, out) is out
                    assert (np.asarray(out) == 3).all(), turn
                    with pytest.raises(pycoll.UsageError, match=f"^allreduce: {overlaps}"):
                        comm.allreduce(make(whole)[:8], make(whole)[1:])
                    with pytest.raises(pycoll.UsageError, match=f"^allreduce: {overlaps}"):
                        comm.plan("allreduce", make(whole)[:8], make(whole)[1:])
                    with pytest.raises(pycoll.UsageError, match=f"^allreduce, array 0: {overlaps}"):
                        comm.allreduce([make(whole)[:8]], [make(whole)[1:]])
                    assert comm.allreduce(x, x) is x
            for _ in range(3):  # without elements, wherever it is said to lie
                for out in (whole[3:3], whole[:0], np.empty(0)):
                    assert comm.allreduce(whole[5:5], out) is out
                assert len(comm.allgather(whole[5:5], whole[:0])) == 0
            assert (whole == np.arange(9)).all()

    pycoll.spawn(rank, 2, timeout=100)


def test_words_are_checked_where_a_plan_is_known_as_where_none_is() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(4)
            for _ in range(2):
                for op in (0, 3, np.int64(0)):
                    with pytest.raises(pycoll.UsageError, match=r"^op is .*, want one of sum"):
                        comm.allreduce(x, op=op)
                    comm.allreduce(x)
                    comm.allreduce(x, op="max")

    ranks(1, rank)


def test_a_root_is_checked_for_every_kind_of_array() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            for make, method in itertools.product(
                (np.asarray, torch.from_numpy),
                (comm.broadcast, comm.reduce, comm.gather, comm.scatter),
            ):
                x = make(np.ones(4))
                for _ in range(2):
                    method(x, root=np.int64(0))
                    for root in ("0", 1.5, -1, 1, 2**70):
                        with pytest.raises(pycoll.UsageError, match=r"root is .*, want a rank"):
                            method(x, root=root)

    ranks(1, rank)


def test_an_algorithm_is_for_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    @pycoll.algorithm(pycoll.broadcast)
    def linear(b: pycoll.ScheduleBuilder) -> None:
        b.chunks(1)
        for peer in range(1, b.size):
            if b.rank == 0:
                b.send(b.output[0], to=peer)
            elif b.rank == peer:
                b.recv(b.output[0], frm=0)

    @pycoll.algorithm(pycoll.broadcast)
    def forgetful(b: pycoll.ScheduleBuilder) -> None:
        b.chunks(1)
        if b.rank == 0:
            b.send(b.output[0], to=1)
        elif b.rank == 1:
            b.recv(b.output[0], frm=0)

    monkeypatch.setenv("PYCOLL_ALGORITHM", "pairwise")  # of some collectives

    def rank() -> None:
        with pycoll.init() as comm:
            for root in range(comm.size):
                x = np.full(1000, comm.rank)
                assert (comm.broadcast(x, root, algorithm=linear) == root).all()
            with pytest.raises(pycoll.UsageError, match="'linear' is for broadcast, want one for"):
                comm.allreduce(x, algorithm=linear)
            with pytest.raises(pycoll.ScheduleError):
                comm.broadcast(x, 1, algorithm=forgetful)
            assert comm.plan("alltoall", np.ones(3)).algorithm == "pairwise"
            comm.broadcast(x)

    ranks(3, rank)


def test_a_setting_that_names_no_algorithm_is_named_itself(monkeypatch: Any) -> None:
    monkeypatch.setenv("PYCOLL_ALGORITHM", "rign")

    def rank() -> None:
        with pycoll.init() as comm:
            comm.barrier()
            with pytest.raises(
                pycoll.UsageError,
                match=r"^broadcast: PYCOLL_ALGORITHM is 'rign' on rank 0, want the name .*binomial",
            ):
                comm.broadcast(np.ones(3))
            comm.broadcast(np.ones(3), algorithm="direct")

    ranks(2, rank)
