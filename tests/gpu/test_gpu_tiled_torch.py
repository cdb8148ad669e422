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
