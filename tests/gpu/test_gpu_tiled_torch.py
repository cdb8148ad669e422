"""Products of torch by tiles beside a collective, ranks as threads, on the stand-in.

The products are torch's own (played_torch.py); data are whole numbers, so that every order of a
sum has the same bits.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakecuda
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import kernels
import together

from pycoll import overlap
from pycoll.errors import BrokenError, MismatchError, UsageError
from pycoll.runtime.native import cuda

torch = pytest.importorskip("torch")
played_torch = pytest.importorskip("played_torch")

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]


@pytest.fixture(autouse=True)
def played() -> Iterator[None]:
    kernels.take_any()
    with played_torch.played():
        yield


def whole(*seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(("size", "tiles", "dtype"), [(2, 4, "float32"), (3, 2, "float64")])
def test_all_gather_matmul(size: int, tiles: int, dtype: str) -> None:
    """The products are those of all rows at once, also of calls that follow each other."""
    rows, columns, width = 8, 5, 3

    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        weight = whole(9, shape=(columns, width), dtype=dtype)
        with overlap.copy_engine(comm, 1 << 16) as copies:
            gathered = torch.as_tensor(out := copies.empty((size * rows, columns), dtype))
            w = gpu.tensor(weight)
            ys = []
            with played_torch.current(played_torch.ExternalStream(gpu.stream)):
                for call in range(3):
                    x = gpu.tensor(whole(comm.rank, call, shape=(rows, columns), dtype=dtype))
                    ys.append(y := gpu.empty((size * rows, width), w.dtype))

                    def product(peer: int, tile: int, part: slice, y: Any = y) -> None:
                        torch.matmul(gathered[part], w, out=y[part])

                    # The stream is that of x, which is torch's current one.
                    assert overlap.all_gather_matmul(copies, x, out, product, tiles=tiles) is out
                    del x  # its memory is the allocator's again
            for call, y in enumerate(ys):
                xs = [whole(p, call, shape=(rows, columns), dtype=dtype) for p in range(size)]
                wanted = np.concatenate(xs) @ weight
                assert (gpu.get(y, gpu.stream) == wanted).all(), call
            copies.synchronize()
            comm.barrier()

    together.spawn(rank, size)
    assert fakecuda.remarks() == []


@pytest.mark.parametrize(
    ("size", "tiles", "dtype"), [(1, 2, "float32"), (2, 4, "float32"), (3, 1, "float64")]
)
def test_matmul_reduce_scatter_makes_its_parts(size: int, tiles: int, dtype: str) -> None:
    """As one product, then one reduce-scatter; its parts are nobody's when it has returned."""
    rows, columns, width = 8, 5, 3
    k = rows // tiles

    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        seeds = [(comm.rank, call) for call in range(3)]
        drawn = [
            (
                whole(*s, 0, shape=(size * rows, columns), dtype=dtype),
                whole(*s, 1, shape=(columns, width), dtype=dtype),
            )
            for s in seeds
        ]
        given = [(gpu.tensor(a), gpu.tensor(w)) for a, w in drawn]
        partial = gpu.empty((size * rows, width), given[0][0].dtype)
        outs = [gpu.empty((rows, width), partial.dtype) for _ in seeds]
        plain = gpu.empty((rows, width), partial.dtype)
        # Ranks that are threads make their plans and load their code before one waits for another.
        comm.plan("reduce_scatter", partial[: size * k], plain[:k])
        comm.plan("reduce_scatter", partial, plain)
        comm.barrier()
        with played_torch.current(played_torch.ExternalStream(gpu.stream)):
            for (a, w), out in zip(given, outs, strict=True):
                blocks = a.view(size, tiles, k, columns)

                def product(tile: int, part: Any, blocks: Any = blocks, w: Any = w) -> None:
                    torch.matmul(blocks[:, tile], w, out=part.view(size, k, width))

                assert overlap.matmul_reduce_scatter(comm, product, out, tiles=tiles) is out
            for call, ((a, w), out) in enumerate(zip(given, outs, strict=True)):
                torch.matmul(a, w, out=partial)
                comm.reduce_scatter(partial, plain)
                found = gpu.get(out, gpu.stream)
                assert (found == gpu.get(plain, gpu.stream)).all()
                wanted = sum(
                    whole(p, call, 0, shape=(size * rows, columns), dtype=dtype)
                    @ whole(p, call, 1, shape=(columns, width), dtype=dtype)
                    for p in range(size)
                )
                assert (found == wanted[comm.rank * rows :][:rows]).all(), call
        comm.barrier()

    together.spawn(rank, size)
    assert fakecuda.remarks() == []


def test_a_tensor_may_outlive_the_communicator() -> None:
    """Its allocator then asks the communicator's stream where it ends; the next has it, too."""

    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        handles = set()
        for _ in range(3):
            mine = comm.dup()
            x = gpu.tensor(np.ones(100, np.float32))
            with played_torch.current(played_torch.ExternalStream(gpu.stream)):
                mine.allreduce(x, async_op=True).wait()
            assert (gpu.get(x, gpu.stream) == comm.size).all()
            handles.add(mine.cuda().stream)
            mine.close()
            freed = gpu.freed
            del x
            gc.collect()
            assert gpu.freed > freed
        assert len(handles) == 1
        cuda.stream_wait(0, gpu.stream)
        comm.barrier()

    together.spawn(rank, 1)
    assert fakecuda.remarks() == []


def test_on_parts_of_the_sms() -> None:
    """Products on one part, reduce-scatters on the other; tensors may outlive them."""

    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        drawn = [whole(p, shape=(4, 4), dtype="float32") for p in range(2)]
        a, out, x = gpu.tensor(drawn[comm.rank]), gpu.empty((2, 4)), gpu.tensor(drawn[comm.rank])
        w = gpu.tensor(np.eye(4, dtype=np.float32))
        comm.plan("reduce_scatter", a[:2], out[:1])
        comm.plan("allreduce", x)
        comm.barrier()
        with overlap.partition(16, comm) as part:
            comm.barrier()

            def product(tile: int, part: Any) -> None:
                torch.matmul(a[2 * tile :][:2], w, out=part)

            with part.computation:
                overlap.matmul_reduce_scatter(comm, product, out)
            with comm.on_stream(part.communication):
                comm.allreduce(x)
            part.computation.synchronize()
            part.communication.synchronize()
            comm.barrier()
        comm.barrier()
        both = drawn[0] + drawn[1]
        assert (gpu.get(out, gpu.stream) == both[comm.rank :: 2]).all()
        assert (gpu.get(x, gpu.stream) == both).all()
        comm.close()
        freed = gpu.freed
        del out, x
        gc.collect()
        assert gpu.freed >= freed + 2

    together.spawn(rank, 2)
    calls = [each.arguments for each in fakecuda.calls() if "LaunchKernel" in each.name]
    assert [" 116 SMs" in each for each in calls if "product" in each] == [True] * 4
    assert [" 16 SMs" in each for each in calls if "product" not in each] == [True] * 6
    assert fakecuda.remarks() == []


def test_what_torch_refuses_on_all_ranks_leaves_them_in_step() -> None:
    """Each call raises what torch does; the next is right."""

    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        a, w = (gpu.tensor(whole(n, shape=(4, 4), dtype="float32")) for n in range(2))
        double = gpu.tensor(whole(1, shape=(4, 4), dtype="float64"))
        numbers = gpu.tensor(whole(1, shape=(4, 4), dtype="int32"))
        y, out = gpu.empty((8, 4)), gpu.empty((2, 4))
        comm.plan("reduce_scatter", a[:2], out[:1])
        comm.plan("reduce_scatter", a, out)
        scatter = overlap.matmul_reduce_scatter
        with overlap.copy_engine(comm, 4096) as copies:
            gathered = torch.as_tensor(into := copies.empty((8, 4)))
            comm.barrier()
            for left, right, target, match in (
                (a, double, None, "same dtype"),
                (a, w, double, "Expected out tensor to have dtype"),
                (a, w[:3], None, "mat1 and mat2 shapes cannot be multiplied"),
                (numbers, numbers, numbers, '"addmm_cuda" not implemented'),
                (a, torch.zeros(4, 4), None, "on the same device"),
                (a, w, y, "resized"),
            ):

                def product(*given: Any, left: Any = left, right: Any = right, to: Any = target):
                    part = y[given[2]] if len(given) == 3 else given[1]
                    torch.matmul(left[: len(part)], right, out=part if to is None else to)

                with played_torch.current(played_torch.ExternalStream(gpu.stream)):
                    with pytest.raises((RuntimeError, UserWarning), match=match):
                        overlap.all_gather_matmul(copies, a, into, product)
                    with pytest.raises((RuntimeError, UserWarning), match=match):
                        scatter(comm, product, out)

            def good(peer: int, tile: int, part: slice) -> None:
                torch.matmul(gathered[part], w, out=y[part])

            def right_one(tile: int, part: Any) -> None:
                torch.matmul(a[2 * tile :][:2], w, out=part)

            with played_torch.current(played_torch.ExternalStream(gpu.stream)):
                overlap.all_gather_matmul(copies, a, into, good)
                scatter(comm, right_one, out)
            wanted = whole(0, shape=(4, 4), dtype="float32") @ whole(
                1, shape=(4, 4), dtype="float32"
            )
            assert (gpu.get(y, gpu.stream) == np.concatenate([wanted, wanted])).all()
            assert (gpu.get(out, gpu.stream) == 2 * wanted[comm.rank :: 2]).all()
            comm.barrier()

    together.spawn(rank, 2)
    assert fakecuda.remarks() == []


@pytest.mark.parametrize(
    "kind", ["tiles", "out", "parts", "no compute", "compute", "other rows", "other tiles"]
)
def test_what_one_rank_is_refused_the_others_hear(kind: str) -> None:
    def rank(comm: Any) -> str:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        a, w = (gpu.tensor(whole(n, shape=(4, 4), dtype="float32")) for n in range(2))
        out = gpu.empty((2, 4))
        bad = comm.rank == 1

        def product(tile: int, part: Any) -> None:
            right = w[:3] if bad and kind == "compute" and tile == 1 else w
            torch.matmul(a[: len(part)], right, out=part)

        for rows in (4, 2):
            comm.plan("reduce_scatter", a[:rows], out[: rows // 2])
        comm.barrier()
        scatter = overlap.matmul_reduce_scatter
        calls = {
            "tiles": lambda: scatter(comm, product, out, tiles=3),
            "out": lambda: scatter(comm, product, np.zeros((2, 4))),
            "parts": lambda: scatter(comm, product, out, parts=[out, out]),
            "no compute": lambda: scatter(comm, None, out),
            "other rows": lambda: scatter(comm, product, out[:1], tiles=1),
            "other tiles": lambda: scatter(comm, product, out, tiles=2),
        }
        good = lambda: scatter(comm, product, out, tiles=1 if "other" in kind else 2)  # noqa: E731

        def several() -> None:
            calls[kind]() if bad and kind in calls else good()
            cuda.stream_wait(0, gpu.stream)
            good()

        errors: Any = MismatchError
        if bad and "other" not in kind:
            errors = RuntimeError if kind == "compute" else UsageError
        with played_torch.current(played_torch.ExternalStream(gpu.stream)):
            with pytest.raises(errors) as raised:
                several()
            cuda.stream_wait(0, gpu.stream)
        return str(raised.value)

    good, bad = together.spawn(rank, 2)
    assert "reduce_scatter" in good
    assert bad


@pytest.mark.parametrize("kind", ["tiles", "out", "no compute", "other rows", "other place"])
def test_what_one_rank_is_refused_of_a_gather_the_others_hear(kind: str) -> None:
    def rank(comm: Any) -> str:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        x = gpu.tensor(whole(comm.rank, shape=(4, 3), dtype="float32"))
        bad = comm.rank == 1
        nothing = lambda *_: None  # noqa: E731
        copies = overlap.copy_engine(comm, 4096)
        if bad and kind == "other place":
            copies.empty(1)
        out = copies.empty((8, 3))
        calls = {
            "tiles": lambda: overlap.all_gather_matmul(copies, x, out, nothing, tiles=3),
            "out": lambda: overlap.all_gather_matmul(copies, x, out[:4], nothing),
            "no compute": lambda: overlap.all_gather_matmul(copies, x, out, None),
            "other rows": lambda: overlap.all_gather_matmul(copies, x[:2], out[:4], nothing),
        }
        good = lambda: overlap.all_gather_matmul(copies, x, out, nothing)  # noqa: E731
        refused = bad and kind in ("tiles", "out", "no compute")
        heard = (MismatchError, BrokenError)

        def made(call: Any) -> None:
            call()
            copies.synchronize()

        with played_torch.current(played_torch.ExternalStream(gpu.stream)):
            with pytest.raises(UsageError if refused else heard) as raised:
                made(calls.get(kind, good) if bad else good)
            if refused:
                with pytest.raises(heard):
                    made(good)
            cuda.stream_wait(0, gpu.stream)
        said = f"{type(raised.value).__name__}: {raised.value}"
        copies.close()
        return said

    texts = together.spawn(rank, 2)
    assert any("MismatchError" in text for text in texts), texts


def test_ranks_that_are_all_refused_a_gather_stay_in_step() -> None:
    def rank(comm: Any) -> None:
        gpu = played_torch.Gpu()
        comm.cuda(0)
        x = gpu.tensor(whole(comm.rank, shape=(4, 3), dtype="float32"))
        with overlap.copy_engine(comm, 4096) as copies:
            out = copies.empty((8, 3))
            for tiles in (3, 2, 5, 1):
                with played_torch.current(played_torch.ExternalStream(gpu.stream)):
                    gather = lambda: overlap.all_gather_matmul(  # noqa: E731
                        copies,
                        x,
                        out,
                        lambda *_: None,
                        tiles=tiles,  # noqa: B023
                    )
                    if tiles in (3, 5):
                        with pytest.raises(UsageError, match="want a multiple of"):
                            gather()
                    else:
                        gather()
            copies.synchronize()
            found = gpu.get(torch.as_tensor(out), gpu.stream)
            xs = [whole(p, shape=(4, 3), dtype="float32") for p in range(2)]
            assert (found == np.concatenate(xs)).all()
            comm.barrier()

    together.spawn(rank, 2)
    assert fakecuda.remarks() == []
