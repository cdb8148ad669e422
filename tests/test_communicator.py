"""The communicator as users call it, on ranks that are processes of this machine."""

from __future__ import annotations

import array
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.dtypes import BY_NAME

pytestmark = pytest.mark.native

SIZES = (1, 2, 3, 4, 8)
DTYPES = [name for name in BY_NAME if name != "bfloat16"]  # which numpy has not
OPS = ("sum", "prod", "min", "max", "avg")
#: Elements around the end of an inline message, of a chunk unit, of a tile and of a slot.
COUNTS = (0, 1, 2, 9, 10, 11, 16, 17, 255, 1000, 4096, 32769)
LARGE = (65536 + 1, 300_001)


def ranks(size: int, function: Any, *arguments: Any) -> list[Any]:
    return pycoll.spawn(function, size, *arguments, timeout=120)


def contribution(rank: int, count: int, dtype: str, op: str) -> np.ndarray:
    """What a rank brings: small whole numbers, so that every result is exact in every dtype."""
    i = np.arange(count)
    values = (i + rank) % 2 + 1 if op == "prod" else (3 * i + 5 * rank) % 13 + rank
    return values.astype(dtype)


def expected(size: int, count: int, dtype: str, op: str) -> np.ndarray:
    every = [contribution(rank, count, dtype, op) for rank in range(size)]
    if op in ("min", "max"):
        return np.minimum.reduce(every) if op == "min" else np.maximum.reduce(every)
    with np.errstate(over="ignore"):
        fold = np.multiply if op == "prod" else np.add
        total = every[0]
        for other in every[1:]:
            total = fold(total, other, dtype=dtype)
    if op != "avg":
        return total
    if np.dtype(dtype).kind == "f":
        wide = np.float64 if dtype == "float64" else np.float32
        return (total.astype(wide) / wide(size)).astype(dtype)
    return (np.sign(total.astype(object)) * (abs(total.astype(object)) // size)).astype(dtype)


def places(count: int, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Room for `count` elements: as numpy makes it, and off by one element."""
    yield "whole", np.empty(count, dtype)
    yield "offset", np.empty(count + 3, dtype)[1 : count + 1]


def poison(x: np.ndarray) -> None:
    x.view(np.uint8)[...] = 0xA5


@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_op_count_and_place(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            counts = COUNTS if size < 8 else COUNTS[::3]
            for dtype, op, count in itertools.product(DTYPES, OPS, counts):
                want = expected(size, count, dtype, op)
                mine = contribution(comm.rank, count, dtype, op)
                for place, out in places(count, dtype):
                    poison(out)
                    assert comm.allreduce(mine, out, op=op) is out
                    assert np.array_equal(out, want), (dtype, op, count, place)
                    assert np.array_equal(mine, contribution(comm.rank, count, dtype, op))
                    out[...] = mine
                    assert comm.allreduce(out, op=op) is out
                    assert np.array_equal(out, want), (dtype, op, count, place, "in place")

    ranks(size, rank)


def test_an_average_of_integers_wraps_as_the_sum_does_and_truncates_towards_zero() -> None:
    """As NCCL's ncclAvg: the sum in the dtype itself, then one division as C divides."""
    names = ("int8", "uint8", "int32", "uint32", "int64", "uint64")

    def rank() -> None:
        with pycoll.init() as comm:
            for name in names:
                limits = np.iinfo(name)
                # Whole sums, negative ones that a floor would round down, and such as wrap.
                values = [limits.max, limits.min, 7, 1, 0, *((-1, -5) if limits.min else (2, 5))]
                mine = np.array([int(v) - (comm.rank if v > 5 else 0) for v in values], name)
                every = comm.allgather(mine.reshape(1, -1)).astype(object)
                bits = 8 * mine.itemsize
                wrapped = [(int(t) - limits.min) % 2**bits + limits.min for t in every.sum(0)]
                want = [abs(t) // comm.size * (-1 if t < 0 else 1) for t in wrapped]
                for algorithm in (None, "ring", "recursive_doubling", "one_shot"):
                    got = comm.allreduce(mine, np.empty_like(mine), "avg", algorithm=algorithm)
                    assert got.tolist() == want, (name, algorithm)
                parts = comm.reduce_scatter(np.concatenate([mine] * comm.size), op="avg")
                assert parts.tolist() == want, name
                reduced = comm.reduce(mine.copy(), op="avg", root=1)
                assert comm.rank != 1 or reduced.tolist() == want, name

    ranks(3, rank)


@pytest.mark.parametrize("size", SIZES)
def test_large_messages_by_every_algorithm(size: int) -> None:
    from pycoll.algorithms import names

    def rank() -> None:
        with pycoll.init() as comm:
            for algorithm, count in itertools.product((None, *names("allreduce")), LARGE):
                for dtype, op in (("float32", "sum"), ("int64", "avg")):
                    mine = contribution(comm.rank, count, dtype, op)
                    want = expected(size, count, dtype, op)
                    out = np.empty_like(mine)
                    poison(out)
                    comm.allreduce(mine, out, op=op, algorithm=algorithm)
                    assert np.array_equal(out, want), (algorithm, dtype, op, count)
                    comm.allreduce(mine, op=op, algorithm=algorithm)
                    assert np.array_equal(mine, want), (algorithm, dtype, op, count, "in place")

    ranks(size, rank)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays_of_empty_take_the_direct_form_and_mix_with_others(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for count in (0, 1, 1000, 200_000):
                want = expected(size, count, "float32", "sum")
                mine = contribution(comm.rank, count, "float32", "sum")
                shared, other = comm.empty(count, "float32"), comm.empty((count, 1), np.float32)
                for x, out in (
                    (shared, shared),
                    (shared, other.reshape(-1)),
                    # One rank's array lies elsewhere: all must then run staged.
                    (shared if comm.rank else np.empty(count, "float32"), shared),
                ):
                    poison(out)
                    x[...] = mine
                    assert np.array_equal(comm.allreduce(x, out), want), count

    ranks(size, rank)


def test_shapes_and_numbers_of_dimensions() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            scalar = np.array(float(comm.rank + 1))
            assert comm.allreduce(scalar) is scalar
            assert scalar.shape == ()
            assert scalar == 3.0
            box = np.full((2, 3, 4), comm.rank + 1)
            out = np.empty_like(box)
            assert comm.allreduce(box, out) is out
            assert (out == 3).all()
            assert comm.allreduce(np.empty((0, 5))).shape == (0, 5)

    ranks(2, rank)


def test_whatever_has_the_buffer_protocol_or_dlpack() -> None:
    class Exporter:
        """Has DLPack and nothing else."""

        def __init__(self, x: np.ndarray) -> None:
            self.x = x

        def __dlpack__(self, **options: Any) -> Any:
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.x.__dlpack_device__()

    def rank() -> None:
        with pycoll.init() as comm:
            doubles = array.array("d", [1.5, comm.rank])
            for _ in range(2):  # by the slow path, then from the cache
                doubles[:] = array.array("d", [1.5, comm.rank])
                assert comm.allreduce(doubles) is doubles
                assert list(doubles) == [3.0, 1.0]
            raw = bytearray([comm.rank, 7])
            assert comm.allreduce(raw, op="max") == bytearray([1, 7])
            out = bytearray(2)
            assert comm.allreduce(b"\1\2", out) is out
            assert out == bytearray([2, 4])
            assert comm.allreduce(memoryview(raw)[:1])[0] == 2
            exported = Exporter(np.full(3, comm.rank + 1.0))
            out = np.empty(3)
            assert (comm.allreduce(exported, out) == 3).all()

    ranks(2, rank)


def test_memory_of_the_buffer_protocol_cannot_be_resized_under_a_call() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            meet = comm._engine.bootstrap.barrier

            def fresh() -> array.array[float]:
                return array.array("d", [1.0] * 50_000)

            def refused(*arrays: array.array[float]) -> None:
                for x in arrays:
                    with pytest.raises(BufferError):
                        x.extend(x)

            x, y, z, a, b = fresh(), fresh(), fresh(), fresh(), fresh()
            plan = comm.plan("allreduce", x)
            works = [comm.allreduce(y, z, async_op=True), comm.allreduce([a, b], async_op=True)]
            refused(x, y, z, a, b)
            del plan
            for work in works:
                work.wait()
            for free in (x, y, z, a, b):
                free.extend([1.0])
            x, y = fresh(), fresh()
            for _ in range(2):  # by the slow path, then from the cache
                if comm.rank == 0:
                    found: list[BaseException] = []

                    def resize(found: list[BaseException] = found) -> None:
                        # Until the call has waited for a while.
                        while not comm._engine.waits.waiter:
                            pass
                        for array in (x, y):
                            try:
                                array.extend([1.0] * 5_000_000)
                            except BufferError as error:
                                found.append(error)
                        meet()

                    thread = threading.Thread(target=resize)
                    thread.start()
                    comm.allreduce(x, y)
                    thread.join()
                    assert len(found) == 2
                else:
                    meet()
                    comm.allreduce(x, y)
                assert set(y) == {2.0}

    ranks(2, rank)


def test_memory_that_dlpack_hands_over_lives_until_the_call_has_ended() -> None:
    class Lazy:
        def __dlpack__(self, **options: Any) -> Any:
            return np.arange(1 << 20, dtype="float64").__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    def rank() -> None:
        with pycoll.init() as comm:
            out, want = np.zeros(1 << 20), 2 * np.arange(1 << 20)
            assert np.array_equal(comm.allreduce(Lazy(), out), want)
            assert np.array_equal(comm.allreduce(Lazy(), out, async_op=True).wait(), want)
            plan = comm.plan("allreduce", Lazy(), out)
            assert np.array_equal(plan(), want)

    ranks(2, rank)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    def rank() -> None:
        with pycoll.init() as comm:
            for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32):
                for _ in range(3):
                    x = torch.arange(1000).remainder(13).add(comm.rank).to(kind)[1:]
                    want = torch.arange(1000).remainder(13).mul(2).add(1).to(kind)[1:]
                    out = torch.empty_like(x)
                    assert comm.allreduce(x, out) is out
                    assert torch.equal(out, want)
                    assert comm.allreduce(x) is x
                    assert torch.equal(x, want)
            x = torch.full((3, 2), float(comm.rank), dtype=torch.bfloat16)
            assert torch.equal(comm.allreduce(x, op="avg"), torch.full((3, 2), 0.5).bfloat16())
            plan = comm.plan("allreduce", x)
            x.fill_(1)
            assert torch.equal(plan(), torch.full((3, 2), 2.0).bfloat16())
            with pytest.raises(pycoll.UsageError, match=r"not contiguous .*pass x.contiguous\(\)"):
                comm.allreduce(torch.ones(4, 3).T)
            with pytest.raises(pycoll.UsageError, match="dtype complex64, which can be moved"):
                comm.allreduce(torch.ones(2, dtype=torch.complex64))
            with pytest.raises(pycoll.UsageError, match="dtype float8_e5m2, which can be mo"):
                comm.allreduce(torch.ones(2).to(torch.float8_e5m2))
            with pytest.raises(pycoll.UsageError, match=r"is on meta, .*pass x.cpu\(\)"):
                comm.allreduce(torch.ones(2, device="meta"))
            with pytest.raises(pycoll.UsageError, match=r"pass x.to_dense\(\)"):
                comm.allreduce(torch.ones(2).to_sparse())

    ranks(2, rank)


def test_a_plan_runs_again_and_again_and_pins_its_arrays() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.full(5000, comm.rank + 1.0)
            out = np.empty_like(x)
            plan = comm.plan("allreduce", x, out, op="max")
            assert "max, float64, 5000 elements" in repr(plan)
            assert plan.transport == "shm"
            for factor in range(1, 5):
                x[...] = factor * (comm.rank + 1)
                assert plan() is out
                assert (out == factor * 2).all()
            held = comm.plan("allreduce", np.full(70_000, comm.rank + 1.0))
            assert (held() == 3).all()
            assert (held() == 6).all()
        with pytest.raises(pycoll.ClosedError, match="communicator is closed"):
            plan()

    ranks(2, rank)


def test_lists_of_arrays_are_one_call() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            counts = (3, 0, 1, 500, 300_000, 7)
            kinds = ("float32", "float32", "int64", "float32", "float32", "int64")

            def fresh() -> list[np.ndarray]:
                return [np.full(c, comm.rank + 1, k) for c, k in zip(counts, kinds, strict=True)]

            x = fresh()
            out = [np.zeros_like(a) for a in x]
            done = comm.allreduce(x, out)
            assert all(a is b for a, b in zip(done, out, strict=True))
            assert all((a == 3).all() for a in out)
            assert all((a == comm.rank + 1).all() for a in x)
            done = comm.allreduce(tuple(x), op="avg")
            assert all(a is b for a, b in zip(done, x, strict=True))
            assert all((a == a.dtype.type(1.5)).all() for a in x)
            work = comm.allreduce(fresh(), async_op=True)
            assert all((a == 3).all() for a in work.wait())
            plan = comm.plan("allreduce", x := fresh())
            assert plan()[0] is x[0]
            assert all((a == 3).all() for a in x)
            assert comm.allreduce([]) == []
            both = np.zeros(10)
            with pytest.raises(pycoll.UsageError, match="array 1 shares memory with another"):
                comm.allreduce([both[:6], both[5:]])
            with pytest.raises(pycoll.UsageError, match="out has 1 arrays, want 2 as x has"):
                comm.allreduce([both, both], [both])
            with pytest.raises(pycoll.UsageError, match="x is a list of arrays and out is a nda"):
                comm.allreduce([both], both)
            with pytest.raises(pycoll.UsageError, match=r"x\[1\] is not contiguous"):
                comm.allreduce([both, np.ones((4, 3)).T])

    ranks(2, rank)


def test_queued_calls_keep_their_order_and_their_arrays() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.full(1000, comm.rank + 1.0)
            works = [comm.allreduce(x, async_op=True) for _ in range(20)]
            comm.allreduce(x)  # takes its place behind the queued ones
            assert (x == 3 * 2.0**20).all()
            assert all(work.done() for work in works)
            assert works[0].wait() is x
            assert works[0].exception() is None
            for _ in range(50):  # nobody but the queue holds these arrays
                comm.allreduce(np.ones(50_000), async_op=True)
            comm.barrier()
            late = comm.allreduce(np.ones(3), async_op=True)
        assert (late.wait() == 2).all()  # close() finished it

    ranks(2, rank)


def test_a_work_that_is_waited_for_too_shortly_goes_on() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(4)
            work = comm.allreduce(x, async_op=True) if comm.rank == 0 else None
            if work is not None:
                with pytest.raises(pycoll.CollectiveTimeout, match=r"goes on, wait again"):
                    work.wait(timeout=0.01)
                assert not work.done()
            control = comm._engine.bootstrap  # a meeting of which the queue knows nothing
            control.barrier()
            if work is None:
                comm.allreduce(x)
            else:
                work.wait()
            assert (x == 2).all()

    ranks(2, rank)


def test_a_thousand_mixed_calls() -> None:
    def rank() -> None:
        random = np.random.default_rng(7)  # the same on all ranks
        with pycoll.init() as comm:
            pending = []
            for turn in range(1000):
                count = int(random.choice((1, 10, 100, 5000, 40_000)))
                form, algorithm = random.integers(3), random.choice(("", "ring", "one_shot"))
                x = contribution(comm.rank, count, "float32", "sum") + np.float32(turn)
                want = expected(3, count, "float32", "sum") + np.float32(3 * turn)
                out = x if form == 0 else np.empty_like(x)
                if form == 2:
                    work = comm.allreduce(x, out, async_op=True, algorithm=algorithm or None)
                    pending.append((work, want))
                else:
                    comm.allreduce(x, out, algorithm=algorithm or None)
                    assert np.array_equal(out, want), turn
            for work, want in pending:
                assert np.array_equal(work.wait(), want)

    ranks(3, rank)


def test_users_algorithm_is_proved_by_rank_0_and_refused_on_all_ranks() -> None:
    from pycoll import ScheduleBuilder

    @pycoll.algorithm(pycoll.allreduce)
    def exchange(b: ScheduleBuilder) -> None:
        b.chunks(1)
        b.send(b.output[0], to=1 - b.rank)
        b.recv_reduce(b.output[0], frm=range(b.size))

    @pycoll.algorithm(pycoll.allreduce)
    def forgetful(b: ScheduleBuilder) -> None:
        b.chunks(1)
        b.send(b.output[0], to=1 - b.rank)
        b.recv(b.output[0], frm=1 - b.rank)

    def rank() -> str:
        with pycoll.init() as comm:
            for count in (3, 1000):
                x = np.full(count, comm.rank + 1.0)
                assert (comm.allreduce(x, algorithm=exchange) == 3).all()
            with pytest.raises(pycoll.PostconditionError) as wrong:
                comm.allreduce(x, algorithm=forgetful)
            assert (comm.allreduce(x) == 6).all()  # the communicator is as good as before
            return str(wrong.value)

    first, second = ranks(2, rank)
    assert first == second


def test_barrier_and_properties() -> None:
    def rank() -> tuple[Any, ...]:
        with pycoll.init() as comm:
            for _ in range(100):
                comm.barrier()
            assert repr(comm) == f"<pycoll.Communicator rank {comm.rank} of 3>"
            return comm.rank, comm.size, comm.local_rank, comm.local_size, comm.launcher

    assert ranks(3, rank) == [(r, 3, r, 3, "spawn") for r in range(3)]


def test_a_dtype_that_numpy_does_not_know() -> None:
    """In a fresh process: ml_dtypes, which cupy and jax import, tells numpy of bfloat16."""
    program = 'import pycoll; pycoll.init().empty(3, "bfloat16")'
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert "UsageError: empty: numpy knows no dtype 'bfloat16'; for" in done.stderr


def test_what_cannot_be_served_is_refused_with_the_cure() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(6)
            for call, message in (
                (lambda: comm.allreduce(x, op="mean"), "op is 'mean', want one of sum, prod"),
                (lambda: comm.allreduce(x, algorithm="rign"), "algorithm is 'rign', want one of"),
                (lambda: comm.allreduce(x, algorithm=3), "algorithm is a int, want the name"),
                (lambda: comm.allreduce(x, timeout=0), "timeout is 0, want seconds"),
                (lambda: comm.allreduce(x, timeout="1"), "timeout is '1', want seconds"),
                (lambda: comm.allreduce(x, [x]), "out is a list, want an array"),
                (lambda: comm.plan("gathre", x), "collective is 'gathre', want one of allreduce"),
                (lambda: comm.allreduce(x, np.ones(5)), r"out has shape \(5,\), want \(6,\)"),
                (lambda: comm.allreduce(x, np.ones((2, 3))), r"out has shape \(2, 3\), want"),
                (lambda: comm.allreduce(x, x.astype("f4")), "out has dtype float32, want float64"),
                (lambda: comm.allreduce(x[:4], x[2:]), "out begins 16 bytes from x and overlaps"),
                (lambda: comm.allreduce(5), "x is a int, want an array"),
                (lambda: comm.empty(3, "O"), "the array has dtype object, want elements of a fix"),
                (lambda: comm.empty(3, ("f4", 2)), "empty: dtype is .*, an array of float32"),
                (lambda: comm.empty(2**70), r"empty: shape is 11805\d+, want a length"),
            ):
                with pytest.raises(pycoll.UsageError, match=message):
                    call()
            with pytest.raises(pycoll.UnavailableError, match="empty: no room for 11258999068426"):
                comm.empty(1 << 50, "uint8")
            assert (comm.allreduce(x) == 1).all()

    ranks(1, rank)


def test_after_close() -> None:
    def rank() -> None:
        comm = pycoll.init()
        kept = comm.empty(1000)
        x = np.ones(3)
        comm.allreduce(x)
        comm.close()
        comm.close()
        for call in (
            lambda: comm.allreduce(x),
            lambda: comm.allreduce([x]),
            lambda: comm.plan("allreduce", x),
            comm.barrier,
            lambda: comm.empty(1),
        ):
            with pytest.raises(pycoll.ClosedError, match="the communicator is closed"):
                call()
        # Each for the first time, by its own name.
        for name, late in {
            "send": lambda: comm.send(x, 0),
            "recv": lambda: comm.recv(x, 0),
            "exchange": comm.exchange,
            "barrier": lambda: comm.barrier(timeout=1),
            "split": lambda: comm.split(0),
            "dup": comm.dup,
            "broadcast_object": lambda: comm.broadcast_object(1),
            "allgather_object": lambda: comm.allgather_object(1),
            "gather_object": lambda: comm.gather_object(1),
            "scatter_object": lambda: comm.scatter_object([1, 2]),
        }.items():
            with pytest.raises(pycoll.ClosedError, match=rf"^{name}: the communicator is closed"):
                late()
        kept[:] = 1.0  # its memory stays until the last reference is gone
        assert kept.sum() == 1000

    ranks(2, rank)


def test_what_empty_and_explain_refuse() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            for shape in (-1, (2, -3), 2.5, "ab", None):
                with pytest.raises(pycoll.UsageError, match=r"^empty: shape is .*, want a length"):
                    comm.empty(shape)  # type: ignore[arg-type]
            for nbytes in (-1, 1e6, "1M"):
                with pytest.raises(pycoll.UsageError, match=r"^explain: nbytes is .*, want an int"):
                    comm.explain("allreduce", nbytes)  # type: ignore[arg-type]
            assert comm.explain("allreduce", 0)  # a call on an empty array is one
            for given, shape in ((np.int64(3), (3,)), ([2, np.uint8(3)], (2, 3)), ((), ())):
                assert comm.empty(given).shape == shape
            with pytest.raises(pycoll.UsageError, match=r"^dup: timeout is 0, want seconds"):
                comm.dup(timeout=0)
            with pytest.raises(pycoll.UsageError, match=r"^barrier: timeout is 0, want seconds"):
                comm.barrier(timeout=0)

    ranks(1, rank)


def test_memory_of_empty_is_freed_with_the_last_view() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            first = comm.empty(1 << 20, "uint8")
            address = first.__array_interface__["data"][0]
            view = first[100:200].reshape(10, 10).T
            del first
            assert comm.empty(1 << 20, "uint8").__array_interface__["data"][0] != address
            del view
            assert comm.empty(1 << 20, "uint8").__array_interface__["data"][0] == address

    ranks(1, rank)


def test_communicators_follow_one_another_and_live_side_by_side() -> None:
    def rank() -> None:
        for _ in range(3):
            with pycoll.init() as comm:
                assert comm.allreduce(np.ones(1))[0] == 1
        with pycoll.init() as one, pycoll.init() as two:
            assert one.allreduce(np.ones(1))[0] == two.allreduce(np.ones(1))[0]

    ranks(1, rank)


def test_setting_and_argument_choose_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLL_ALGORITHM", "ring")

    def rank() -> None:
        with pycoll.init() as comm:
            x = np.ones(5)
            assert comm.plan("allreduce", x).algorithm == "ring"
            assert comm.plan("allreduce", x, algorithm="one_shot").algorithm == "one_shot"
            comm.barrier()

    ranks(2, rank)


def test_import_loads_neither_numpy_nor_the_engine() -> None:
    code = (
        "import sys, pycoll; pycoll.init, pycoll.Communicator, pycoll.Plan, pycoll.Work; "
        "print([m for m in ('numpy', 'torch', 'pycoll._native', 'mpi4py') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_init_does_not_look_at_installed_packages() -> None:
    """To load what looks takes about a third as long as the rest of init."""
    code = (
        "import sys, pycoll; pycoll.init().close(); "
        "print([m for m in ('importlib.metadata', 'zipfile', 'email') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'pycoll' has no attribute 'allredcue'"):
        _ = pycoll.allredcue  # type: ignore[attr-defined]
    assert "allreduce" in dir(pycoll)
