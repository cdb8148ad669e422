"""Matrix products by tiles beside a collective, ranks as threads, on the stand-in."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fakecuda
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

import kernels
import together
from copies_cases import given
from tiled_cases import Halving, drawn

from pycoll import overlap
from pycoll.errors import BrokenError, CollectiveTimeout, MismatchError, UsageError
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.native import cuda
from pycoll.runtime.native.load import ffi

pytestmark = [pytest.mark.native, pytest.mark.fake_cuda]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_data_of_a_gather_in_tiles(size: int) -> None:
    """Bit for bit, also of tiles that are short or empty; counts go on from call to call."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        with overlap.copy_engine(comm, 1 << 16) as copies:
            base = 0
            for number, (count, tiles) in enumerate([(7, 3), (100, 4), (2, 5), (0, 2), (9, 1)]):
                out = copies.empty(size * count)
                x = pool.array(given(comm.rank, number, count, "float32"))
                copies.allgather(x, out, pool.stream, tiles=tiles)
                other = cuda.stream(0)
                for peer in copies.arrival_order:
                    at = copies.arrived(peer)
                    assert (at.base, at.tiles) == (base, tiles)
                    copies.wait(peer, tiles - 1, other)
                cuda.stream_wait(0, other)
                found = np.empty(size * count, np.float32)
                pool.get(out.address, found)
                wanted = [given(p, number, count, "float32") for p in range(size)]
                assert (found == np.concatenate(wanted)).all()
                copies.synchronize()
                cuda.stream_free(0, other)
                base += tiles
                comm.barrier()

    together.spawn(rank, size)
    assert fakecuda.remarks() == []


def test_a_kernel_sees_each_tile_come() -> None:
    """A kernel polls the count of the other rank, whose last tile is held until it has seen one."""
    kernels.take_any()
    held = Held()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        module = cuda.module(0, fakecuda.image(wait={"like": "fakecuda_await"}))
        wait = cuda.function(0, module, "wait")
        x = pool.array(given(comm.rank, 0, 10, "float32"))
        with overlap.copy_engine(comm, 1 << 16) as copies:
            out, other = copies.empty(20), cuda.stream(0)
            held.prepare(comm, pool)
            with held.copy(comm.rank == 1, tile=1):
                copies.allgather(x, out, copies.stream, tiles=2)
            if comm.rank == 0:
                at = copies.arrived(1)
                arguments = [ffi.new("uint64_t *", at.address), ffi.new("uint64_t *", at.base + 1)]
                cuda.launch(0, wait, (1, 1, 1), (1, 1, 1), arguments, other)
                cuda.stream_wait(0, other)
                found = np.empty(5, np.float32)
                pool.get(out.address + 40, found)
                assert (found == given(1, 0, 10, "float32")[:5]).all()
                assert not cuda.stream_query(0, copies.stream)
                held.open(other)
            copies.synchronize()
            comm.barrier()
            cuda.stream_free(0, other)

    together.spawn(rank, 2)


class Held:
    """A copy of rank 1 that waits for a word, and so do those behind it."""

    def __init__(self) -> None:
        self._word = 0
        self._mine = threading.local()
        self._copy = cuda.copy

    def prepare(self, comm: Any, pool: Any) -> None:
        if comm.rank == 0:
            self._word = pool.array(np.zeros(1, np.uint64)).address
        comm.barrier()

    @contextlib.contextmanager
    def copy(self, held: bool, tile: int) -> Iterator[None]:
        """Hold the copy to the other rank of one of two tiles, on the thread that calls."""
        if not held:
            yield
            return
        self._mine.number, self._mine.at = 0, 2 + tile  # its own two come first
        with mock.patch.object(cuda, "copy", self._held):
            yield

    def _held(self, number: int, to: int, frm: int, nbytes: int, stream: int) -> None:
        if hasattr(self._mine, "number"):
            if self._mine.number == self._mine.at:
                cuda.stream_wait64(number, stream, self._word, 1)
            self._mine.number += 1
        self._copy(number, to, frm, nbytes, stream)

    def wait(self, stream: int) -> None:
        cuda.stream_wait64(0, stream, self._word, 1)

    def open(self, stream: int) -> None:
        cuda.stream_write64(0, stream, self._word, 1)


@pytest.mark.parametrize(("size", "tiles"), [(1, 2), (2, 1), (2, 4), (3, 2)])
def test_all_gather_matmul(size: int, tiles: int) -> None:
    """Twice into the same arrays: neither x nor out is written to before it was read."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        halving, (rows, columns) = Halving(), (8, 5)
        with overlap.copy_engine(comm, 1 << 16) as copies:
            out, x = copies.empty((size * rows, columns)), pool.empty((rows, columns))
            drawns = [drawn(comm.rank, n, shape=(rows, columns)) for n in range(2)]
            sources = [pool.array(values) for values in drawns]
            results = [pool.empty(out.shape) for _ in range(2)]
            for source, y in zip(sources, results, strict=True):
                calls = []

                def compute(peer: int, tile: int, part: slice, y: Any = y, calls: Any = calls):
                    calls.append((peer, tile, part))
                    cuda.copy(0, y[part].address, out[part].address, y[part].nbytes, pool.stream)
                    halving.enqueue(y[part], pool.stream)

                cuda.copy(0, x.address, source.address, x.nbytes, pool.stream)
                stream = pool.stream
                found = overlap.all_gather_matmul(
                    copies, x, out, compute, tiles=tiles, stream=stream
                )
                assert found is out
                each = rows // tiles
                order = [(comm.rank - k) % size for k in range(size)]
                first = [(p, t, p * rows + t * each) for p in order for t in range(tiles)]
                assert calls == [(p, t, slice(at, at + each)) for p, t, at in first]
            cuda.stream_wait(0, pool.stream)
            copies.synchronize()
            for n, y in enumerate(results):
                whole = np.concatenate([drawn(p, n, shape=(rows, columns)) for p in range(size)])
                assert (y.get() == halving.expected(whole)).all()
            comm.barrier()

    together.spawn(rank, size)
    assert fakecuda.remarks() == []


def test_a_tile_is_computed_while_the_next_is_on_its_way() -> None:
    """Rank 1 copies its second tile only when rank 0 has computed with the first."""
    kernels.take_any()
    held = Held()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        halving = Halving()
        x = pool.array(drawn(comm.rank, shape=(4, 3)))
        y = pool.empty((8, 3))
        with overlap.copy_engine(comm, 1 << 16) as copies:
            out = copies.empty((8, 3))
            held.prepare(comm, pool)

            def compute(peer: int, tile: int, part: slice) -> None:
                cuda.copy(0, y[part].address, out[part].address, y[part].nbytes, pool.stream)
                halving.enqueue(y[part], pool.stream)
                if (comm.rank, peer, tile) == (0, 1, 0):
                    held.open(pool.stream)

            with held.copy(comm.rank == 1, tile=1):
                overlap.all_gather_matmul(copies, x, out, compute, tiles=2, stream=pool.stream)
            cuda.stream_wait(0, pool.stream)
            copies.synchronize()
            whole = np.concatenate([drawn(p, shape=(4, 3)) for p in range(2)])
            assert (y.get() == halving.expected(whole)).all()
            comm.barrier()

    together.spawn(rank, 2)


def test_a_rank_that_never_comes_ends_the_waits_of_streams_and_of_kernels() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        module = cuda.module(0, fakecuda.image(wait={"like": "fakecuda_await"}))
        wait, other = cuda.function(0, module, "wait"), cuda.stream(0)
        x = pool.array(drawn(comm.rank, shape=(4, 3)))
        copies = overlap.copy_engine(comm, 1 << 16)
        copies.timeout = 1.0
        out = copies.empty((8, 3))
        if comm.rank == 0:
            seen = []
            overlap.all_gather_matmul(
                copies, x, out, lambda *what: seen.append(what), tiles=2, stream=pool.stream
            )
            at = copies.arrived(1)
            arguments = [ffi.new("uint64_t *", at.address), ffi.new("uint64_t *", at.base + 2)]
            cuda.launch(0, wait, (1, 1, 1), (1, 1, 1), arguments, other)
            with pytest.raises(CollectiveTimeout, match="48 B in 2 tiles did not finish"):
                copies.synchronize()
            cuda.stream_wait(0, pool.stream)
            cuda.stream_wait(0, other)
            assert len(seen) == 4
            with pytest.raises(CollectiveTimeout):
                copies.arrived(1)
        comm.barrier()
        copies.close()
        cuda.stream_free(0, other)

    together.spawn(rank, 2)


def test_ranks_that_cut_into_different_tiles_hear_so() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        copies = overlap.copy_engine(comm, 1 << 16)
        out, x = copies.empty((8, 3)), pool.array(drawn(comm.rank, shape=(4, 3)))

        def call() -> None:  # the other rank may be so far that it is found as this one enqueues
            how = {"tiles": 1 + comm.rank, "stream": pool.stream}
            overlap.all_gather_matmul(copies, x, out, lambda *_: None, **how)
            copies.synchronize()

        with pytest.raises((MismatchError, BrokenError), match=r"different things|gave up"):
            call()
        cuda.stream_wait(0, pool.stream)
        copies.close()

    together.spawn(rank, 2)


@pytest.mark.parametrize(("size", "tiles"), [(1, 1), (2, 2), (3, 4)])
def test_matmul_reduce_scatter(size: int, tiles: int) -> None:
    """As one reduce-scatter of the whole by the same algorithm, bit for bit."""
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        halving, (rows, columns) = Halving(), (8, 5)
        each = rows // tiles
        values = drawn(comm.rank, shape=(size, rows, columns))
        partial = pool.array(values.reshape(size * rows, columns))
        parts = [pool.empty((size * each, columns)) for _ in range(2)]
        out, whole = pool.empty((rows, columns)), pool.empty((rows, columns))
        seen = []

        def compute(tile: int, part: Any) -> None:
            seen.append(tile)
            row = columns * 4
            at = part.__cuda_array_interface__["data"][0]
            for peer in range(size):
                frm = partial.address + (peer * rows + tile * each) * row
                cuda.copy(0, at + peer * each * row, frm, each * row, pool.stream)
            halving.enqueue(SimpleNamespace(address=at, size=size * each * columns), pool.stream)

        how = {"tiles": tiles, "parts": parts, "algorithm": "direct", "stream": pool.stream}
        # Ranks that are threads make their plans and load their code before one waits for another.
        comm.plan("reduce_scatter", parts[0], out[:each], algorithm="direct")
        comm.plan("reduce_scatter", partial, whole, algorithm="direct")
        halving.enqueue(whole, pool.stream)
        cuda.stream_wait(0, pool.stream)
        comm.barrier()
        assert overlap.matmul_reduce_scatter(comm, compute, out, **how) is out
        assert seen == list(range(tiles))
        found = out.get()
        halving.enqueue(partial, pool.stream)
        with comm.on_stream(pool.stream):
            comm.reduce_scatter(partial, whole, algorithm="direct")
        assert (found == whole.get()).all()
        exact = sum(
            halving.expected(drawn(p, shape=(size, rows, columns))[comm.rank]).astype(float)
            for p in range(size)
        )
        assert np.allclose(found, exact, rtol=1e-5)
        comm.barrier()

    together.spawn(rank, size)
    assert fakecuda.remarks() == []


def test_the_next_tile_is_computed_while_one_is_reduced() -> None:
    """Rank 1 comes to the first reduce-scatter only when rank 0 has computed the second tile."""
    kernels.take_any()
    held = Held()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        out = pool.empty((6, 2))
        parts = [pool.empty((4, 2)) for _ in range(2)]
        values = [pool.array(drawn(comm.rank, tile, shape=(4, 2))) for tile in range(3)]
        comm.plan("reduce_scatter", parts[0], out[:2])
        held.prepare(comm, pool)

        def compute(tile: int, part: Any) -> None:
            if (comm.rank, tile) == (1, 0):
                held.wait(pool.stream)
            cuda.copy(0, part.address, values[tile].address, part.nbytes, pool.stream)
            if (comm.rank, tile) == (0, 1):
                held.open(pool.stream)

        overlap.matmul_reduce_scatter(comm, compute, out, tiles=3, parts=parts, stream=pool.stream)
        found = out.get()
        wanted = [
            sum(drawn(p, tile, shape=(4, 2))[2 * comm.rank :][:2] for p in range(2))
            for tile in range(3)
        ]
        assert (found == np.concatenate(wanted)).all()
        comm.barrier()

    together.spawn(rank, 2)


def test_what_is_refused() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        nothing = lambda *_: None  # noqa: E731
        x, part = pool.empty((4, 3)).fill(0), pool.empty((2, 3))
        host = np.zeros((4, 3), np.float32)
        with overlap.copy_engine(comm, 4096) as copies:
            out = copies.empty((4, 3))
            gather = lambda *a, **k: overlap.all_gather_matmul(*a, **k)  # noqa: E731
            with pytest.raises(UsageError, match="nothing was gathered yet"):
                copies.arrived(0)
            for what, match in (
                ((copies, x, out, None), "compute is None, want a function"),
                ((comm, x, out, nothing), "copies is .*, want what overlap.copy_engine made"),
                ((copies, host, out, nothing), "x lies in the memory of the host, want it on a G"),
                ((copies, x, out[:3], nothing), r"out has shape \(3, 3\), want \(4, 3\): 1 times"),
                ((copies, x, pool.empty((4, 3)), nothing), "out lies elsewhere, want an array of"),
            ):
                with pytest.raises(UsageError, match=match):
                    gather(*what)
            with pytest.raises(UsageError, match="x has 4 rows, want a multiple of 3, the tiles"):
                gather(copies, x, out, nothing, tiles=3)
            with pytest.raises(UsageError, match="tiles is 0, want at least 1"):
                gather(copies, x, out, nothing, tiles=0)
            with pytest.raises(UsageError, match="tiles is 5000, want 1 to 4096"):
                copies.allgather(x, out, tiles=5000)
            fakecuda.use(0)
            stream = fakecuda.Stream()
            with pytest.raises(UsageError, match="is being captured"), fakecuda.capture(stream):
                gather(copies, x, out, nothing, stream=stream.ptr)
            copies.allgather(x, out, pool.stream, tiles=2)
            with pytest.raises(UsageError, match=r"CopyEngine\.wait: tile is 2, want 0 to 1"):
                copies.wait(0, 2, pool.stream)
            with pytest.raises(UsageError, match=r"CopyEngine\.arrived: rank is 1, want 0 to 0"):
                copies.arrived(1)
            with pytest.raises(UsageError, match="is being captured"), fakecuda.capture(stream):
                copies.wait(0, 1, stream.ptr)
        scatter = overlap.matmul_reduce_scatter
        with pytest.raises(UsageError, match="out has 4 rows, want a multiple of 3, the tiles"):
            scatter(comm, nothing, x, tiles=3)
        with pytest.raises(UsageError, match="out lies in the memory of the host"):
            scatter(comm, nothing, host)
        with pytest.raises(UsageError, match=r"parts is None, .*; want parts, arrays of shape \(2"):
            scatter(comm, nothing, x)
        with pytest.raises(UsageError, match="want a list of 2 arrays or more"):
            scatter(comm, nothing, x, parts=[part])
        with pytest.raises(UsageError, match=r"parts\[1\] overlaps out or another part"):
            scatter(comm, nothing, x, parts=[part, part])
        with pytest.raises(UsageError, match=r"parts\[0\] has shape \(3, 3\) of float32, want \(2"):
            scatter(comm, nothing, x, parts=[x[:3], part])
        with pytest.raises(UsageError, match=r"comm is None, want a pycoll\.Comm"):
            scatter(None, nothing, x)

    together.spawn(rank, 1)


def test_what_compute_raises_comes_through_and_streams_are_in_order() -> None:
    kernels.take_any()

    def rank(comm: Any) -> None:
        from device import Pool

        pool = Pool(0, 1 << 20)
        comm.cuda(0)
        x = pool.array(drawn(comm.rank, shape=(4, 3)))
        with overlap.copy_engine(comm, 4096) as copies:
            out = copies.empty((8, 3))

            def compute(*_: Any) -> None:
                raise ValueError("not today")

            with pytest.raises(ValueError, match="not today"):
                overlap.all_gather_matmul(copies, x, out, compute, stream=pool.stream)
            behind = Event(0, pool.stream)
            cuda.stream_wait(0, pool.stream)
            assert behind.happened()
            assert cuda.stream_query(0, copies.stream)
            copies.synchronize()
            comm.barrier()

    together.spawn(rank, 2)
