"""A product by tiles and the collective in front of it or behind it, against one after the other.

Two ranks share the GPU, as threads, and both compute. As no link lies between them, the collective
runs at the speed of the GPU's memory, as copies do; once more with kernels that are paced as NVLink
would be, which says so wherever it is shown: copies are not. The product is a kernel of these
tests, and once more torch's. Data are whole numbers, so every way must have the same bits, and is
looked at before it is timed and behind it. Ways take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from phase import Lacking, Run, main

#: Rows of each rank, what is summed, columns of the result; of float32, or of float16 by torch.
SHAPES = ((2048, 4096, 512), (2048, 4096, 4096), (1024, 8192, 256))
TILES = (1, 2, 4, 8)
#: Bytes per second that the kernels wait for, where they are paced: NVLink 4, one way.
LINK = 450 * 10**9
RANKS = 2


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together

    from pycoll.errors import UnavailableError
    from pycoll.runtime.cuda import pace

    shapes = ((256, 16, 128),) if run.stand_in else SHAPES[:1] if run.short else SHAPES
    cases = [("kernel", shape, 0) for shape in shapes] + [("kernel", shapes[0], LINK)]
    cases += [("torch", shape, 0) for shape in shapes]
    said: dict[str, str] = {}
    for name, shape, rate in cases:
        marks = [name, " x ".join(map(str, shape)), "paced" if rate else ""]
        key = ", ".join(filter(None, marks))
        if not run.time_for(key, 10.0):
            continue
        pace.set_rate(rate)
        try:
            found = together.spawn(rank, RANKS, run, name, shape)[0]
        except (Lacking, UnavailableError) as error:  # torch, or NVRTC for what is paced
            run.details[key] = str(error)
            continue
        finally:
            pace.set_rate(0)
        run.details[key] = {kind: each.as_dict() for kind, each in found.items()}
        for kind, each in found.items():
            said[f"{key}: {kind}"] = each.verdict
            print(f"{key}: {kind}: {each.verdict}; {each.note}")
            for way, times in each.ways.items():
                print(f"{way:<12} {statistics.median(times) * 1e6:>11.2f} us")
        run.note("; ".join(f"{k}: {text}" for k, text in said.items()))
    return "; ".join(f"{k}: {text}" for k, text in said.items())


def rank(comm: Any, run: Run, name: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Measure as one of the ranks."""
    from device import Pool

    rows, k, n = shape
    product = (Kernel if name == "kernel" else Torch)(run, k, n)
    every = comm.size * rows
    # x, the gathered ones, those of the scatter and w; three results of all rows, one of a rank's.
    elements = (rows + 2 * every + n) * k + (4 * every + rows) * n
    pool = Pool(run.device, elements * 4 + (1 << 20))
    comm.cuda(run.device)
    product.take(pool.array(whole(0, 0, shape=(k, n), dtype=product.dtype)))
    found = {"scatter": scatter(comm, run, product, pool, shape)}
    try:
        found["gather"] = gather(comm, run, product, pool, shape)
    except UnavailableHere as error:  # on all ranks
        run.details["copies"] = str(error)
    comm.barrier()
    return found


class UnavailableHere(Exception):
    """There are no copy engines."""


def gather(comm: Any, run: Run, product: Any, pool: Any, shape: tuple[int, int, int]) -> Any:
    """Time the ways to a product of what all ranks have."""
    from pycoll import overlap
    from pycoll.errors import UnavailableError

    rows, k, n = shape
    every, dtype = comm.size * rows, product.dtype
    x = pool.array(whole(1, comm.rank, shape=(rows, k), dtype=dtype))
    gathered, y = pool.empty((every, k), dtype), pool.empty((every, n), dtype)
    xs = [whole(1, peer, shape=(rows, k), dtype=dtype) for peer in range(comm.size)]
    wanted = multiplied(np.concatenate(xs), k, n, dtype)
    comm.plan("allgather", x, gathered)
    try:
        copies = overlap.copy_engine(comm, every * k * np.dtype(dtype).itemsize)
    except UnavailableError as error:
        raise UnavailableHere(str(error)) from error
    out = copies.empty((every, k), dtype)

    def collective(stream: Any) -> None:
        with comm.on_stream(stream):
            comm.allgather(x, gathered)

    def by_kernel(stream: Any) -> None:
        collective(stream)
        product.whole(gathered, y, stream)

    def by_copies(stream: Any) -> None:
        copies.allgather(x, out, stream)
        product.whole(out, y, stream)

    def in_tiles(tiles: int) -> Callable[[Any], None]:
        def enqueue(stream: Any) -> None:
            def compute(peer: int, tile: int, part: slice) -> None:
                product.whole(out[part], y[part], stream)

            overlap.all_gather_matmul(copies, x, out, compute, tiles=tiles, stream=stream)

        return enqueue

    # Copies in front of the whole product are the all-gather by copy engines.
    ways = {"sequential": by_kernel, "copies": by_copies} | ways_of(run, rows, in_tiles)
    alone = lambda stream: product.whole(gathered, y, stream)  # noqa: E731
    with copies:
        result = timed(comm, run, ways, alone, collective, y, wanted)
        copies.synchronize()
        comm.barrier()
    return result


def scatter(comm: Any, run: Run, product: Any, pool: Any, shape: tuple[int, int, int]) -> Any:
    """Time the ways to the sum of all ranks' products, of which each has its rows."""
    from pycoll import overlap

    rows, k, n = shape
    every, dtype = comm.size * rows, product.dtype
    a = pool.array(whole(2, comm.rank, shape=(every, k), dtype=dtype))
    partial, out = pool.empty((every, n), dtype), pool.empty((rows, n), dtype)
    halves = [pool.empty((every, n), dtype) for _ in range(2)]
    mine = slice(comm.rank * rows, (comm.rank + 1) * rows)
    parts = [whole(2, peer, shape=(every, k), dtype=dtype)[mine] for peer in range(comm.size)]
    wanted = sum(multiplied(part, k, n, dtype) for part in parts)
    comm.plan("reduce_scatter", partial, out)

    def collective(stream: Any) -> None:
        with comm.on_stream(stream):
            comm.reduce_scatter(partial, out)

    def one_by_one(stream: Any) -> None:
        product.whole(a, partial, stream)
        collective(stream)

    def in_tiles(tiles: int) -> Callable[[Any], None]:
        given = [half[: every // tiles] for half in halves]
        comm.plan("reduce_scatter", given[0], out[: rows // tiles])

        def enqueue(stream: Any) -> None:
            def compute(tile: int, part: Any) -> None:
                product.tile(a, tile, tiles, comm.size, part, stream)

            how = {"tiles": tiles, "parts": given, "stream": stream}
            overlap.matmul_reduce_scatter(comm, compute, out, **how)

        return enqueue

    ways = {"sequential": one_by_one} | ways_of(run, rows, in_tiles)
    alone = lambda stream: product.whole(a, partial, stream)  # noqa: E731
    return timed(comm, run, ways, alone, collective, out, wanted)


def ways_of(run: Run, rows: int, in_tiles: Callable[[int], Any]) -> dict[str, Any]:
    """Return the ways by tiles, of whole tiles of the kernel."""
    import kernels

    fitting = [tiles for tiles in TILES if rows // tiles >= kernels.TILE]
    return {f"tiles {tiles}": in_tiles(tiles) for tiles in fitting}


def timed(
    comm: Any,
    run: Run,
    ways: dict[str, Callable[[Any], None]],
    alone: Callable[[Any], None],
    collective: Callable[[Any], None],
    result: Any,
    wanted: Any,
) -> Any:
    """Check every way, time them in turns, and check them again."""
    from pycoll.benchmark.oob import gather as meeting
    from pycoll.benchmark.timing import rotated
    from pycoll.overlap.gpu import Gpu
    from pycoll.overlap.result import Measured

    gpu, meet = Gpu(run.device), meeting(comm)
    stream, start, end = gpu.stream(high=False), gpu.event(), gpu.event()
    # Loading waits for kernels that run: nobody's collective runs before all have all.
    alone(stream)
    stream.synchronize()
    comm.barrier()

    def seconds(enqueue: Callable[[Any], None]) -> float:
        meet(0.0)
        stream.record(start)
        enqueue(stream)
        stream.record(end)
        stream.synchronize()
        return gpu.seconds(start, end)

    def checked() -> None:
        for way, enqueue in ways.items():
            result.fill(0xFF)
            comm.barrier()
            enqueue(stream)
            stream.synchronize()
            same = result.get().tobytes() == wanted.tobytes()
            run.check(same, f"rank {comm.rank}: by {way} the result is another")
            comm.barrier()

    checked()
    turns = {"compute": alone, "collective": collective} | ways
    times: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(5 if run.short else 15):
        for name in rotated(list(turns), repeat):
            times[name].append(seconds(turns[name]))
    checked()
    slowest = {
        name: tuple(float(max(each)) for each in zip(*meet(values), strict=True))
        for name, values in times.items()
    }
    compute, moved = slowest.pop("compute"), slowest.pop("collective")
    paced = comm.cuda().paced
    note = f"{paced}; copies are not paced" if paced else "no link lies between the ranks"
    return Measured(compute, moved, slowest, note)


class Kernel:
    """The product by a kernel of these tests."""

    dtype = "float32"

    def __init__(self, run: Run, k: int, n: int) -> None:
        import kernels

        load = kernels.played if run.stand_in else kernels.load
        self._handle = load(run.device, run.carried)["rows"]
        self._threads = 4 if run.stand_in else kernels.THREADS  # of which it plays no more
        self._device, self._k, self._n, self._tile = run.device, k, n, kernels.TILE
        self._w = 0

    def take(self, w: Any) -> None:
        """Take the right side."""
        self._w = w.address

    def whole(self, a: Any, c: Any, stream: Any) -> None:
        """Enqueue ``c = a w``."""
        self._enqueue(a.address, c, a.shape[0], 1, 0, stream)

    def tile(self, a: Any, tile: int, tiles: int, size: int, c: Any, stream: Any) -> None:
        """Enqueue the product of a tile of each rank's rows of ``a``."""
        rows = a.shape[0] // size
        each = rows // tiles
        self._enqueue(a[tile * each :].address, c, each, size, rows, stream)

    def _enqueue(self, a: int, c: Any, rows: int, batches: int, apart: int, stream: Any) -> None:
        from pycoll.runtime.native import cuda
        from pycoll.runtime.native.load import ffi

        addresses = [ffi.new("uint64_t *", at) for at in (a, self._w, c.address)]
        numbers = [ffi.new("uint32_t *", v) for v in (self._n, self._k, apart, rows)]
        grid = (self._n // self._tile, rows // self._tile, batches)
        given = addresses + numbers
        cuda.launch(self._device, self._handle, grid, (self._threads, 1, 1), given, stream.ptr)


class Torch:
    """The product by torch: cuBLAS, in float16 by tensor cores."""

    dtype = "float16"

    def __init__(self, run: Run, k: int, n: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise Lacking(f"torch does not load ({error})") from error
        if not torch.cuda.is_available():
            raise Lacking("torch finds no GPU")
        self._torch, self._w = torch, None

    def take(self, w: Any) -> None:
        """Take the right side."""
        self._w = self._torch.as_tensor(w)

    def whole(self, a: Any, c: Any, stream: Any) -> None:
        """Enqueue ``c = a w``."""
        from pycoll.overlap.frameworks import on_stream

        to, frm = self._torch.as_tensor(c), self._torch.as_tensor(a)
        on_stream(lambda _: self._torch.matmul(frm, self._w, out=to))(stream)

    def tile(self, a: Any, tile: int, tiles: int, size: int, c: Any, stream: Any) -> None:
        """Enqueue the product of a tile of each rank's rows of ``a``."""
        from pycoll.overlap.frameworks import on_stream

        each = a.shape[0] // size // tiles
        blocks = self._torch.as_tensor(a).view(size, tiles, each, -1)
        to = self._torch.as_tensor(c).view(size, each, -1)
        on_stream(lambda _: self._torch.matmul(blocks[:, tile], self._w, out=to))(stream)


def whole(*seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Return whole numbers so small that every sum of products is exact."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(dtype)


def multiplied(a: Any, k: int, n: int, dtype: str) -> Any:
    """Return the product with the right side that all ranks have."""
    w = whole(0, 0, shape=(k, n), dtype="float32")
    return (a.astype("float32") @ w).astype(dtype)


if __name__ == "__main__":
    main(phase)
