"""Every collective on arrays in the memory of GPUs: the same bits as on the CPU."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

import collective_checks as checks
import fakecuda
import gpus
import numpy as np
import pytest
from collective_checks import COLLECTIVES, OPS, REDUCING, ROOTED, Case, blocks

import pycoll
from pycoll.communicator import Communicator

pytestmark = gpus.MARKS


def opened(comm: Communicator) -> gpus.DeviceChecks:
    comm.cuda()
    return gpus.DeviceChecks(comm, fakecuda.Stream())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_collective_by_every_root(size: int) -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            seen = opened(comm)
            for collective, count in itertools.product(COLLECTIVES, (0, 1, 17, 5000)):
                for root in range(size) if collective in ROOTED else (0,):
                    case = Case(collective, blocks(collective, count, size), root=root)
                    seen.blocking(case, offset=count % 2 == 1)

    gpus.ranks(size, rank)


def test_every_dtype_and_operator() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            seen = opened(comm)
            for dtype, count in itertools.product(checks.DTYPES, (5, 1000)):
                for op in OPS:
                    seen.blocking(Case("allreduce", (count,), dtype, op), offset=True)
            for collective, dtype in itertools.product(COLLECTIVES, ("float16", "int64")):
                op = "max" if collective in REDUCING else "sum"
                seen.blocking(Case(collective, blocks(collective, 300, 2), dtype, op))

    gpus.ranks(2, rank)


def test_what_is_only_moved_may_be_of_any_dtype() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = opened(comm).stream
            for kind in ("i2", "u2", "c8", "?", ">f4"):
                every = np.arange(1, 6 * comm.size + 1).astype(kind).reshape(comm.size, 6)
                x = gpus.of(every[comm.rank].copy())
                with comm.on_stream(stream):
                    assert comm.broadcast(x, root=1) is x
                stream.synchronize()
                assert x.host.tobytes() == every[1].tobytes(), kind
                x, out = gpus.of(every[comm.rank].copy()), gpus.of(np.zeros_like(every))
                with comm.on_stream(stream):
                    comm.allgather(x, out)
                stream.synchronize()
                assert out.host.tobytes() == every.tobytes(), kind
                listed = [gpus.of(every[comm.rank].copy()) for _ in range(3)]
                with comm.on_stream(stream):
                    comm.broadcast(listed, root=0)
                stream.synchronize()
                assert all(y.host.tobytes() == every[0].tobytes() for y in listed), kind

    gpus.ranks(2, rank)


def test_long_messages() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            seen = opened(comm)
            for collective in COLLECTIVES:
                seen.blocking(Case(collective, blocks(collective, 400_001, 2)), offset=True)

    gpus.ranks(2, rank)


def test_blocks_of_different_lengths() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            seen = opened(comm)
            for collective, turn in itertools.product(("allgather", "reduce_scatter"), range(3)):
                counts = checks.uneven(3, turn)
                seen.blocking(Case(collective, counts, "int64", "max"), offset=True)

    gpus.ranks(3, rank)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_rounding_is_that_of_the_cpu(dtype: str) -> None:
    from pycoll.algorithms import names

    def rank() -> None:
        with pycoll.init() as comm:
            random = np.random.default_rng(comm.rank)
            mine = (random.standard_normal(3001) * 10.0 ** random.integers(-3, 4, 3001)).astype(
                dtype
            )
            mine[::97], mine[1::89] = np.nan, -0.0
            stream = fakecuda.Stream()
            for op, name in itertools.product(OPS, names("allreduce")):
                if name.startswith("hierarchical"):
                    continue
                want = comm.allreduce(mine.copy(), op=op, algorithm=name)
                x = gpus.of(mine)
                with comm.on_stream(stream):
                    comm.allreduce(x, op=op, algorithm=name)
                stream.synchronize()
                assert x.host.tobytes() == want.tobytes(), (op, name)

    gpus.ranks(3, rank)


def test_queued_calls_and_plans() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            seen = opened(comm)
            for collective, count in itertools.product(COLLECTIVES, (0, 7, 5000)):
                root = comm.size - 1 if collective in ROOTED else 0
                case = Case(collective, blocks(collective, count, comm.size), root=root)
                works = []
                for within in (False, True, False):
                    for s, x, out in seen.arrays(case, within, True):
                        works.append((s.want, seen.call(case, x, out, async_op=True), x))
                for want, work, _ in works:
                    checks.equal(work.wait(), want, case, "queued")
                for s, x, out in seen.arrays(case, True, False):
                    mine = None if x is None else gpus.Seen(x)
                    result = mine if out is x else None if out is None else gpus.Seen(out)
                    if collective == "broadcast":
                        result = None
                    plan = comm.plan(collective, mine, result, root=root)
                    assert plan.transport == "cuda"
                    for _ in range(2):
                        if x is not None:
                            x[...] = s.x
                        with comm.on_stream(seen.stream):
                            got = plan()
                        seen.stream.synchronize()
                        checks.equal(gpus.host(got), s.want, case, "a plan")

    gpus.ranks(2, rank)


def test_a_plan_says_what_its_kernel_is() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            short, long = (gpus.of(np.zeros(n, "f4")) for n in (2, 1 << 20))
            plan = comm.plan("allreduce", short)
            shape = plan.shape
            assert (shape.protocol, shape.packets, shape.direct) == ("LL", True, False)
            assert shape.blocks == shape.instances >= 1  # one_shot has one channel
            assert 1 <= shape.threads <= comm.cuda().threads
            blocks = "1 block" if shape.blocks == 1 else f"{shape.blocks} blocks"
            assert repr(plan).endswith(f"2 elements) by one_shot, {blocks}, LL>")
            more = comm.plan("allreduce", long).shape
            assert (more.protocol, more.packets) == ("Simple", False)
            assert shape.blocks < more.blocks <= comm.cuda().blocks
            listed = comm.plan("allreduce", [short, long]).shape
            assert listed == shape
            assert comm.plan("allreduce", np.zeros(2)).shape is None

    gpus.ranks(2, rank)


def test_lists_travel_together() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = fakecuda.Stream()
            shapes = [(3,), (0,), (70, 5), (300_001,)]
            # From comm.empty, where pycoll finds room for what it packs.
            every = [comm.empty(shape, "float32", device="cuda") for shape in shapes]
            every.append(comm.empty(9, "int32", device="cuda"))
            want = [np.full(x.shape, 3, x.dtype) for x in every]

            def fill() -> None:
                for x in every:
                    gpus.host(x)[...] = comm.rank + 1

            def check(results: Any) -> None:
                assert all(a is b for a, b in zip(results, every, strict=True))
                for x, w in zip(every, want, strict=True):
                    assert np.array_equal(gpus.host(x), w)

            fill()
            with comm.on_stream(stream):
                results = comm.allreduce(every)
            stream.synchronize()
            check(results)
            fill()
            check(comm.allreduce(every, async_op=True).synchronize())
            plan = comm.plan("allreduce", every)
            for _ in range(2):
                fill()
                with comm.on_stream(stream):
                    results = plan()
                stream.synchronize()
                check(results)
            assert comm.allreduce([]) == []

    gpus.ranks(2, rank)


def test_arrays_of_empty_and_new_arrays() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = fakecuda.Stream()
            x = comm.empty((2, 50), "float32", device="cuda")
            assert repr(x) == "<pycoll.CudaArray float32[2, 50] on cuda:0>"
            gpus.host(x)[...] = comm.rank + 1
            with comm.on_stream(stream):
                out = comm.allgather(x)
                parts = comm.reduce_scatter(out)
                turned = comm.alltoall(out)
                comm.alltoall(turned, turned)  # in place: through a copy
                total = comm.allreduce(x, comm.empty((2, 50), "float32", device="cuda"))
            stream.synchronize()
            assert out.shape == (4, 50)
            assert gpus.host(out).reshape(2, -1)[:, 0].tolist() == [1, 2]
            assert np.array_equal(gpus.host(parts), np.full((2, 50), 2.0 * (comm.rank + 1)))
            assert np.array_equal(gpus.host(turned), gpus.host(out))
            assert np.array_equal(gpus.host(total), np.full((2, 50), 3.0))
            mine = comm.scatter(out if comm.rank == 0 else None, x, root=0)
            comm.cuda()
            made = comm.allgather(gpus.of(np.full(3, comm.rank, "i4")), async_op=True).synchronize()
            assert gpus.host(made).tolist() == [0, 0, 0, 1, 1, 1]
            assert mine is not None

    gpus.ranks(2, rank)


@pytest.mark.parametrize("size", [2, 3])
def test_arrays_of_empty_are_moved_where_they_lie(size: int) -> None:
    """The direct form; it gives way, on all ranks alike, where an array of one is elsewhere."""

    def rank() -> None:
        with pycoll.init() as comm:
            n = 5000
            mine = np.arange(n * size, dtype="f4") * (comm.rank + 1)
            every = [np.arange(n * size, dtype="f4") * (r + 1) for r in range(size)]
            stream = fakecuda.Stream()
            x, out = (comm.empty(n * size, "float32", device="cuda") for _ in range(2))
            part, whole = (comm.empty(k, "float32", device="cuda") for k in (n, n * size * size))
            astray = gpus.of(np.zeros(n * size, "f4"))
            plans = [comm.plan("allreduce", x, y) for y in (out, astray)]
            forms = [plan.algorithm for plan in plans]
            assert plans[0].shape.protocol == "direct"
            assert plans[1].shape.protocol in ("LL", "Simple")
            staged = comm.explain("allreduce", x.nbytes, device="cuda").choice.algorithm
            assert forms == ["two_shot", staged]
            total = sum(every)
            for turn in range(6):
                gpus.host(x)[...] = mine
                y = astray if turn % 3 == 2 and comm.rank == 1 else out
                with comm.on_stream(stream):
                    comm.allreduce(x, y)
                stream.synchronize()
                assert np.array_equal(gpus.host(y), total)
                with comm.on_stream(stream):
                    comm.reduce_scatter(x, part)
                    comm.allgather(x, whole)
                    comm.alltoall(x, out)
                stream.synchronize()
                assert np.array_equal(gpus.host(part), np.split(total, size)[comm.rank])
                assert np.array_equal(gpus.host(whole), np.concatenate(every))
                turned = [np.split(e, size)[comm.rank] for e in every]
                assert np.array_equal(gpus.host(out), np.concatenate(turned))
                with comm.on_stream(stream):
                    comm.allreduce(x)
                    comm.broadcast(x, root=size - 1)
                stream.synchronize()
                assert np.array_equal(gpus.host(x), total)

    gpus.ranks(size, rank)


def test_calls_that_repeat_are_found_again() -> None:
    """Arrays like those of an earlier call, in all ways in which they may lie."""

    def rank() -> None:
        with pycoll.init() as comm:
            checker, stream = checks.Checks(comm), fakecuda.Stream()
            whole = comm.empty(2, "float32", device="cuda")  # the plane is there

            def ours(count: int, dtype: str) -> Any:
                return gpus.host(comm.empty(count, dtype, device="cuda"))

            def shown(x: Any) -> Any:
                shape, kind = x.shape, whole.kind
                return type(whole)(x.ctypes.data, shape, kind, 0, x)

            for collective, turn in itertools.product(COLLECTIVES, range(3)):
                root = 1 if collective in ROOTED else 0
                case = Case(collective, blocks(collective, 600, 2), root=root)
                for within in (False, True, False):
                    for s, x, out in checker.arrays(case, within, False, ours):
                        mine = None if x is None else shown(x)
                        result = mine if out is x else None if out is None else shown(out)
                        with comm.on_stream(stream):
                            got = checker.call(case, mine, result)
                        stream.synchronize()
                        where = collective, within, turn
                        checks.equal(gpus.host(got), s.want, *where)
                        if not within and collective != "broadcast" and s.x is not None:
                            checks.equal(x, s.x, *where, "x is written")
            assert comm._collectives.launch.cuda._quick._known

    gpus.ranks(2, rank)


def test_a_heap_that_is_full_says_so_and_takes_memory_back() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            stream = fakecuda.Stream()
            held = [comm.empty(1 << 20, "float32", device="cuda") for _ in range(12)]
            with pytest.raises(pycoll.UnavailableError, match="no room for 33554432 bytes of GPU"):
                comm.empty(1 << 23, "float32", device="cuda")
            with comm.on_stream(stream):
                comm.allreduce(held[0])
            held.clear()
            comm.empty(1 << 23, "float32", device="cuda")

    gpus.ranks(2, rank)


def test_what_is_held_for_the_gpu_is_let_go() -> None:
    def rank() -> None:
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            seen = []
            for _ in range(200):
                x = gpus.of(np.ones(10, "f4"))
                seen.append(weakref.ref(x))
                comm.allreduce(x)
                stream.synchronize()
            del x
            assert sum(each() is not None for each in seen) < 100

    gpus.ranks(2, rank)


def test_results_that_nobody_keeps_do_not_fill_the_heap() -> None:
    def rank() -> None:
        os.environ["PYCOLL_CUDA_HEAP"] = "4"
        with pycoll.init() as comm, comm.on_stream(stream := fakecuda.Stream()):
            x = gpus.of(np.ones(50_000, "f4"))
            xs = [gpus.of(np.ones(20_000, "f4")) for _ in range(4)]
            for _ in range(30):
                comm.allgather(x)
                comm.allreduce(xs)
            stream.synchronize()

    gpus.ranks(2, rank)
