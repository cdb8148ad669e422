"""All ranks in one launch, so that all are sure to run at once: the same bits as on the CPU.

Every built-in algorithm, with 2, 4 and 8 ranks, in every dtype and from one element on; outputs are
poisoned. A medium and a long message of each algorithm come first, as slots, tiles and lanes begin
there; then short ones in all dtypes, then long ones, as far as the time goes. What is wrong is put
down, and the next case is run.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

from phase import Lacking, Run, main

POISON = 0xA5
#: Bytes of a rank's arrays at most, of so many ranks.
LARGEST = {2: 256 << 20, 4: 128 << 20, 8: 64 << 20}
#: Parts of the time for so many ranks: most orders of events are met by 4.
SHARES = {2: 3.0, 4: 4.0, 8: 3.0}
#: Kernels that give up before a number of ranks is left: each costs its deadline.
MOST_BROKEN = 3
#: Texts of failures that are kept.
MOST_TEXTS = 40
#: What the ten minutes of --first have of each algorithm: a medium and a long message, a short one.
FIRST = (4097, 1 << 20, 17)


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    sizes = (2, 4) if run.short and not run.first else (2, 4, 8)
    run.details["kernels"] = "carried" if run.kernels_carried else "compiled"
    seen: list[str] = []
    failures: list[str] = []
    for i, size in enumerate(sizes):
        body = Fused(run, size, run.left * SHARES[size] / sum(SHARES[n] for n in sizes[i:]))
        body.run_all()
        failures += body.failures
        seen.append(f"{size} ranks {body.done}")
        run.details[f"{size} ranks"] = {
            "cases": body.done,
            "dtypes": sorted(body.dtypes),
            "not served": body.refused,
            "failures": body.failures[:MOST_TEXTS],
        }
        run.note(_said(seen, failures))
    run.check(not failures, _said(seen, failures))
    return _said(seen, failures)


def _said(seen: list[str], failures: list[str]) -> str:
    good = f"{', '.join(seen)} cases, bit for bit"
    return f"{len(failures)} failures, first {failures[0]}; {good}" if failures else good


class Broken(Exception):
    """A kernel gave up, or did not do what it should: nobody takes leave of its communicator."""


class Fused:
    """One number of ranks; what its threads share."""

    def __init__(self, run: Run, size: int, seconds: float) -> None:
        self.run, self.size = run, size
        self.meeting: Any = None
        self.arguments: list[bytes] = [b""] * size
        self.blocks: list[int] = [0] * size
        self.done = 0
        self.dtypes: set[str] = set()
        self.refused: list[str] = []
        self.failures: list[str] = []
        self._until = time.monotonic() + seconds
        self._cases: list[Any] = list(cases(run))
        if run.most is not None:  # of all kinds, not the first few
            self._cases = self._cases[:: -(-len(self._cases) // run.most)]

    def run_all(self) -> None:
        """Run all cases; behind a kernel that gave up, on a new communicator."""
        import together

        for _ in range(MOST_BROKEN):
            # Longer than a kernel takes to give up; a rank that fails elsewhere is not waited for.
            self.meeting = together.Meeting(self.size, 30.0 + 2 * self.run.deadline)
            try:
                together.spawn(self.rank, self.size, timeout=60.0)
            except Broken:
                pass
            except Exception as error:  # whatever it is, the next case may go well
                traceback.print_exc()
                self.failures.append(f"{self.size} ranks: {type(error).__name__}: {error}")
            if not self._cases or time.monotonic() > self._until:
                return
        left = f"{self.size} ranks: {len(self._cases)} cases behind {MOST_BROKEN} that gave up"
        self.run.left_out.append(left)

    def rank(self, comm: Any) -> None:
        """Run one rank."""
        from device import Pool

        room = LARGEST[self.size] if not self.run.stand_in else 40 << 20
        pool = Pool(self.run.device, 2 * room + (1 << 20))
        comm.cuda(self.run.device)
        seat = self.meeting.of(comm.rank)
        self._run(comm, pool, room, seat)
        seat.gather(0.0)
        if self.failures:  # to close would be to wait for kernels that may never have run
            raise Broken

    def _run(self, comm: Any, pool: Any, room: int, seat: Any) -> None:
        import cases as c

        for case in list(self._cases):
            # Rank 0's clock decides for all.
            if max(seat.gather(float(comm.rank == 0 and time.monotonic() > self._until))):
                if comm.rank == 0:
                    self.run.left_out.append(f"{self.size} ranks: {case} and what follows")
                return
            if comm.rank == 0:
                self._cases.pop(0)
            if c.nbytes(case, self.size) <= room:
                self._one(comm, case, pool, seat)

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
        trouble = ""
        try:
            self.arguments[comm.rank], self.blocks[comm.rank] = prepare(
                comm, case, x, out, self.run.deadline
            )
        except pycoll.PycollError as error:
            trouble = f"{type(error).__name__}: {error}"
        if self._put_down(comm, case, seat, trouble):
            return
        if comm.rank == 0:
            try:
                launch(comm, case, self.arguments, max(self.blocks), pool)
            except pycoll.PycollError as error:
                trouble = f"{type(error).__name__}: {error}"
        if self._put_down(comm, case, seat, trouble):
            raise Broken
        got = out.get()
        if not c.same_bits(got, want):
            trouble = c.difference(got, want)
        elif case.collective != "broadcast" and not c.same_bits(x.get(), given):
            trouble = "the input changed"
        if not self._put_down(comm, case, seat, trouble) and comm.rank == 0:
            self.done += 1
            self.dtypes.add(case.dtype)
            self.run.checks += 1

    def _put_down(self, comm: Any, case: Any, seat: Any, trouble: str) -> bool:
        """Tell whether any rank is in trouble; a rank that is puts down its own."""
        if trouble:
            text = f"{self.size} ranks, rank {comm.rank}: {case}: {trouble}"
            self.failures.append(text)
            print(f"FAILED: {text}")
        return bool(max(seat.gather(float(bool(trouble)))))


def cases(run: Run) -> Iterator[Any]:
    """Yield the cases in their order."""
    import cases as c

    if run.first:
        dtypes = ("float32",) if run.stand_in else ("float32", "bfloat16", "int8")
        for count in FIRST[::2] if run.short else FIRST:
            yield from c.cases((count,), dtypes)
        if run.stand_in:  # its other dtypes are slow
            yield from c.cases((17,), ("bfloat16", "int8"))
        return
    if run.short:
        yield from c.cases((c.MEDIUM[0],), ("float32",))
        yield from c.cases((3, 1000), ("bfloat16", "int8"))
        return
    yield from c.cases((c.MEDIUM[0], c.LARGE[0]), ("float32",))
    yield from c.cases(c.SMALL)
    yield from c.cases(c.MEDIUM, ("bfloat16", "uint8", "float64", "float32"))
    # Every algorithm with one of the three lengths, then with the others.
    for turn in range(3):
        yield from c.cases(c.LARGE, ("float32",), thinned=(3, turn))
    yield from c.cases(c.LARGE, ("bfloat16",), thinned=(3, 0))


def prepare(comm: Any, case: Any, x: Any, out: Any, deadline: float) -> tuple[bytes, int]:
    """Return a kernel's argument for this rank's part of a case, and how many blocks it wants."""
    from pycoll.runtime.native import device_comm
    from pycoll.runtime.plan.options import CallOptions

    op = "sum" if case.op == "-" else case.op
    options = CallOptions(op, 0, None, case.algorithm)
    kind, reduce_op, _ = comm._collectives.launch._check(case.collective, options)
    given = x if case.collective == "broadcast" else out
    request = comm._collectives.launch._request(kind, x, given, reduce_op, options)
    cuda = comm._collectives.launch.cuda
    plane, plan = cuda._ready(request, options, x._pool.stream)
    shape = device_comm.device_plan_shape(plan.handle)
    argument = device_comm.device_comm_prepare(
        plane.native, plane.comm, plan.handle, *request.addresses, deadline
    )
    return argument, shape.blocks


def launch(comm: Any, case: Any, arguments: list[bytes], blocks: int, pool: Any) -> None:
    """Launch all ranks' parts at once, and wait for them."""
    import numpy as np

    from pycoll.runtime.native import cuda, load

    plane = comm._collectives.launch.cuda.streams.open()
    function = fused(plane, case, pool.device)
    joined = np.frombuffer(b"".join(arguments), np.uint8)
    place = pool.array(joined)
    pointer = load.ffi.new("uint64_t *", place.address)
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
    from pycoll.runtime.cuda import compile
    from pycoll.runtime.native import cuda

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
