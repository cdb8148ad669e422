"""Ranks as processes that reach each other's GPU memory by CUDA IPC; short messages.

Processes on one GPU take turns of about a millisecond, so a call takes as many: this is about what
is right, and not about time.
"""

from __future__ import annotations

import time
from typing import Any

from phase import Lacking, Run, main

COUNTS = (1, 17, 1000, 16 << 10)  #: of 4 bytes: up to 64 KiB
LONG = 20_000  #: of 4 bytes: calls whose arrays are registered
REGISTERED = 12  #: calls on an allocation: some until it is opened, some more on it


def phase(run: Run) -> str:
    import probe

    import pycoll

    # Nothing here may ask CUDA: a process that has cannot fork ranks that do. So others try.
    if lack := probe.refused(run.device):
        raise Lacking(f"CUDA IPC between two processes {lack}")
    seen = []
    sizes = (2,) if run.first else (2, 4)
    for size in sizes:
        share = run.left / (2 if size != sizes[-1] else 1)
        more = run.device, run.short, run.stand_in and not run.kernels_carried, share
        found = pycoll.spawn(rank, size, *more, timeout=share + 60)
        if lack := next(filter(None, (lack for lack, *_ in found)), ""):
            raise Lacking(lack)
        calls, reach, said, direct = found[0][1:]
        run.checks += calls
        run.details[f"{size} ranks"] = {
            "calls": calls,
            "reach": reach,
            "registration": said,
            "direct": direct,
        }
        run.check(min(direct) > 0, f"{size} ranks: calls on registered arrays: {direct}; {said}")
        run.check(set(reach) == {"cuda"}, f"{size} ranks reach each other by {reach}, want cuda")
        seen.append(f"{size} ranks {calls} calls")
        run.note(", ".join(seen))
    return f"{', '.join(seen)} over CUDA IPC, bit for bit"


def rank(
    device: int, short: bool, take_any: bool, seconds: float
) -> tuple[str, int, tuple[str, ...], str, list[int]]:
    """Run one rank; returns what it lacks, its calls, and how it reaches the others' memory."""
    import kernels

    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        return lack, 0, (), "", []
    if take_any:
        kernels.take_any()
    import cases as c
    from device import Pool

    import pycoll

    until, calls = time.monotonic() + seconds, 0
    with pycoll.init(timeout=60.0) as comm:
        pool, gpu = Pool(device, 16 << 20), comm.cuda(device)
        stream = cuda.stream(device)
        direct = _registered(comm, stream, device)
        calls += 2 * REGISTERED
        for repeat in range(1 if short else 20):
            for case in c.cases(COUNTS[:2] if short else COUNTS, ("float32",)):
                if max(comm.allgather_object(time.monotonic() > until)):
                    return "", calls, gpu.reach, comm.cuda().registration, direct
                if repeat and c.lengths(case, 0, comm.size)[1] > COUNTS[-1]:
                    continue
                _one(comm, case, pool, stream, device)
                calls += 1
            _messages(comm, repeat, pool, stream, device)
            calls += 2
        return "", calls, gpu.reach, comm.cuda().registration, direct


def _registered(comm: Any, stream: int, device: int) -> list[int]:
    """Call on arrays of an allocation, then of another, as a rule at the same address.

    Returns:
        How many of the calls on each read and wrote the ranks' arrays where they lie.
    """
    import numpy as np
    from device import Pool

    from pycoll.runtime.native import cuda

    dc, found = comm._collectives.launch.cuda.streams.open(), []
    for turn in range(2):
        pool, before = Pool(device, 4 << 20), dc.registered().direct
        for call in range(REGISTERED):
            pool.reset()
            drawn = (np.random.default_rng((turn, call, rank)) for rank in range(comm.size))
            every = [each.integers(0, 1 << 16, LONG).astype("float32") for each in drawn]
            x = pool.array(every[comm.rank])
            with comm.on_stream(stream):
                comm.allreduce(x, algorithm="two_shot")
            cuda.stream_wait(device, stream)
            dc.check()
            if (x.get() != np.sum(every, axis=0)).any():
                raise AssertionError(f"rank {comm.rank}: call {call} on allocation {turn}")
        found.append(dc.registered().direct - before)
        pool.close()
    return found


def _one(comm: Any, case: Any, pool: Any, stream: int, device: int) -> None:
    import cases as c

    import pycoll
    from pycoll.runtime.native import cuda

    try:
        given, want = c.expected(comm, case, comm.rank, comm.size)
    except pycoll.UsageError:  # alike on all ranks: not for so many
        return
    pool.reset()
    x = pool.array(given, case.dtype)
    out = x
    if case.collective != "broadcast":
        out = pool.empty(want.size, case.dtype).fill(0xA5)
    with comm.on_stream(stream):
        c.call(comm, case, x, out)
    cuda.stream_wait(device, stream)
    comm._collectives.launch.cuda.streams.open().check()
    got = out.get()
    if not c.same_bits(got, want):
        raise AssertionError(f"rank {comm.rank} of {comm.size}: {case}: {c.difference(got, want)}")


def _messages(comm: Any, seed: int, pool: Any, stream: int, device: int) -> None:
    """Exchange messages between all ranks, of lengths drawn by chance, and parts of an array."""
    import numpy as np

    from pycoll.runtime.native import cuda

    drawn, size, mine = np.random.default_rng(seed), comm.size, comm.rank
    counts = drawn.integers(0, COUNTS[-1], (size, size))
    data = [[drawn.integers(0, 1 << 30, n, "int32") for n in row] for row in counts]
    pool.reset()
    sends = [(pool.array(data[mine][peer], "int32"), peer) for peer in range(size)]
    recvs = [(pool.empty(int(counts[peer][mine]), "int32"), peer) for peer in range(size)]
    x = pool.array(np.concatenate(data[mine]), "int32")
    out = pool.empty(int(counts[:, mine].sum()), "int32")
    with comm.on_stream(stream):
        comm.exchange(sends, recvs)
        comm.alltoallv(x, counts[mine].tolist(), out, counts[:, mine].tolist())
    cuda.stream_wait(device, stream)
    comm._collectives.launch.cuda.streams.open().check()
    want = [data[peer][mine] for peer in range(size)]
    got = [array.get() for array, _ in recvs]
    if not all(map(np.array_equal, [*got, out.get()], [*want, np.concatenate(want)])):
        raise AssertionError(f"rank {mine} of {size}: messages of turn {seed} are wrong")


if __name__ == "__main__":
    main(phase)
