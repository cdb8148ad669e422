"""All ranks in one launch, so that all are sure to run at once: the same bits as on the CPU.

Every built-in algorithm, with 2, 4 and 8 ranks, in every dtype and from one element on; outputs are
poisoned. Short messages first, in all dtypes; then long ones, as far as the time goes.
"""

from __future__ import annotations

from typing import Any

from phase import Lacking, Run, main

POISON = 0xA5
#: Seconds after which a kernel gives up: much, as tools that look on make it slow.
DEADLINE = 60.0
#: Bytes of a rank's arrays at most, of so many ranks.
LARGEST = {2: 256 << 20, 4: 128 << 20, 8: 64 << 20}


def phase(run: Run) -> str:
    from pycoll.runtime import bindings_cuda as cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together

    seen: list[str] = []
    sizes = (2, 4) if run.short else (2, 4, 8)
    for size in sizes:
        share = run.left / (len(sizes) - sizes.index(size))
        body = Fused(run, size, share)
        together.spawn(body.rank, size, timeout=60.0)
        seen.append(f"{size} ranks {body.done}")
        run.details[f"{size} ranks"] = {"cases": body.done, "not served": body.refused}
        run.note(f"{', '.join(seen)} cases, bit for bit")
    return f"{', '.join(seen)} cases, bit for bit"


class Fused:
    """One number of ranks; what its threads share."""

    def __init__(self, run: Run, size: int, seconds: float) -> None:
        import time

        import together

        self.run, self.size = run, size
        self.meeting = together.Meeting(size, 1.5 * DEADLINE)
        self.arguments: list[bytes] = [b""] * size
        self.blocks: list[int] = [0] * size
        self.done = 0
        self.refused: list[str] = []
        self._until = time.monotonic() + seconds
        self._clock = time.monotonic

    def rank(self, comm: Any) -> None:
        """Run one rank."""
        import cases as c
        from device import Pool

        room = LARGEST[self.size] if not self.run.short else 4 << 20
        pool = Pool(self.run.device, 2 * room + (1 << 20))
        comm.cuda(self.run.device)
        seat = self.meeting.of(comm.rank)
        for case in self._cases():
            # Rank 0's clock decides for all.
            if max(seat.gather(float(comm.rank == 0 and self._clock() > self._until))):
                if comm.rank == 0:
                    self.run.left_out.append(f"{self.size} ranks: {case} and what follows")
                return
            if c.nbytes(case, self.size) > room:
                continue
            self._one(comm, case, pool, seat)

    def _cases(self) -> Any:
        import cases as c

        if self.run.short:
            yield from c.cases((3, 1000), ("float32", "bfloat16", "int8"))
            return
        yield from c.cases(c.SMALL)
        yield from c.cases(c.MEDIUM, ("float32", "bfloat16", "uint8", "float64"))
        # Every algorithm with one of the three lengths, then with the others.
        for turn in range(3):
            yield from c.cases(c.LARGE, ("float32",), thinned=(3, turn))
        yield from c.cases(c.LARGE, ("bfloat16",), thinned=(3, 0))

    def _one(self, comm: Any, case: Any, pool: Any, seat: Any) -> None:
        import cases as c

        import pycoll

        try:
            given, want = c.expected(comm, case, comm.rank, self.size)
        except pycoll.UsageError as error:  # alike on all ranks: not for so many
            if comm.rank == 0:
                self.refused.append(f"{case}: {error}")
            return
        pool.reset()
        itemsize = given.itemsize
        x = pool.array(given, case.dtype, case.skew * itemsize)
        if case.collective == "broadcast":
            out = x
        else:
            out = pool.empty(want.size, case.dtype, case.skew * itemsize).fill(POISON)
        self.arguments[comm.rank], self.blocks[comm.rank] = prepare(comm, case, x, out)
        seat.gather(0.0)
        if comm.rank == 0:
            launch(comm, case, self.arguments, max(self.blocks), pool)
        seat.gather(0.0)
        got = out.get()
        if not c.same_bits(got, want):
            where = f"{self.size} ranks, rank {comm.rank}: {case}"
            raise AssertionError(f"{where}: {c.difference(got, want)}")
        if case.collective != "broadcast" and not c.same_bits(x.get(), given):
            raise AssertionError(f"{self.size} ranks, rank {comm.rank}: {case}: the input changed")
        seat.gather(0.0)
        if comm.rank == 0:
            self.done += 1
            self.run.checks += 1


def prepare(comm: Any, case: Any, x: Any, out: Any) -> tuple[bytes, int]:
    """Return a kernel's argument for this rank's part of a case, and how many blocks it wants."""
    from pycoll.runtime import bindings_plane
    from pycoll.runtime.asked import Asked

    op = "sum" if case.op == "-" else case.op
    asked = Asked(op, 0, None, case.algorithm)
    kind, reduce_op = comm._launch._check(case.collective, asked)
    given = None if case.collective == "broadcast" else out
    request = comm._launch._request(kind, x, given, reduce_op, asked)
    cuda = comm._launch.cuda
    plane, plan = cuda._ready(request, asked, x._pool.stream)
    shape = bindings_plane.plane_plan_shape(plan.handle)
    argument = bindings_plane.plane_prepare(
        plane.native, plane.comm, plan.handle, *request.addresses, DEADLINE
    )
    return argument, shape.blocks


def launch(comm: Any, case: Any, arguments: list[bytes], blocks: int, pool: Any) -> None:
    """Launch all ranks' parts at once, and wait for them."""
    import numpy as np

    from pycoll.runtime import bindings
    from pycoll.runtime import bindings_cuda as cuda

    plane = comm._launch.cuda.open()
    function = fused(plane, case, pool.device)
    joined = np.frombuffer(b"".join(arguments), np.uint8)
    place = pool.array(joined)
    pointer = bindings.ffi.new("uint64_t *", place.address)
    grid = (blocks, len(arguments), 1)
    threads = (plane.kernels.threads, 1, 1)
    flags = cuda.COOPERATIVE  # all blocks at once, or an error
    cuda.launch(pool.device, function, grid, threads, [pointer], pool.stream, flags=flags)
    cuda.stream_wait(pool.device, pool.stream)
    plane.check()


_functions: dict[tuple[int, str, str], int] = {}


def fused(plane: Any, case: Any, device: int) -> int:
    """Return the kernel that runs several ranks."""
    from pycoll.dtypes import BY_NAME, reduce_op
    from pycoll.runtime import bindings_cuda as cuda
    from pycoll.runtime.cuda import compile

    kind, op = BY_NAME[case.dtype], reduce_op("sum" if case.op == "-" else case.op)
    key = device, case.dtype, op.name
    if key not in _functions:
        gpu = cuda.device(device)
        image = compile.cubin(kind, op, (gpu.major, gpu.minor), plane.kernels._cache)
        module = cuda.module(device, image)
        _functions[key] = cuda.function(device, module, compile.fused_entry(kind, op))
    return _functions[key]


if __name__ == "__main__":
    main(phase)
