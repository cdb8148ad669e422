"""A computation beside a collective, in every way: pycoll.overlap on the GPU that is there.

Two ranks share the GPU, as threads: one computes, both take part in the collective. As no link lies
between the ranks, it runs at the speed of the GPU's memory; once more with kernels that are paced
as NVLink would be, which says so wherever it is shown. Beside what is measured stands what
`overlap.advise` had reckoned.
"""

from __future__ import annotations

import math
from typing import Any

from phase import Lacking, Run, main

MESSAGES = (1 << 20, 16 << 20, 64 << 20)
#: Bytes per second that the kernels wait for, where they are paced: NVLink 4, one way.
LINK = 450 * 10**9


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together

    from pycoll.benchmark import report
    from pycoll.errors import UnavailableError
    from pycoll.overlap.result import Measured
    from pycoll.runtime.cuda import pace

    found: dict[str, Measured] = {}
    messages = (4096,) if run.stand_in else MESSAGES[:1] if run.short else MESSAGES
    names = ("chain", "product", "torch")
    if run.first:
        messages, names = messages[-2:-1] or messages, ("chain", "torch")
    lacking: set[str] = set()
    cases = [(name, nbytes, 0, "allreduce") for name in names for nbytes in messages]
    cases += [("chain", messages[-1], LINK, "allreduce"), ("chain", messages[-1], 0, "allgather")]
    for name, nbytes, rate, kind in cases:
        marks = (kind if kind != "allreduce" else "", "paced" if rate else "")
        key = ", ".join(filter(None, (name, report.nbytes(nbytes), *marks)))
        if name in lacking or not run.time_for(key, 10.0):
            continue
        pace.set_rate(rate)
        try:
            result, advice, reckoned = together.spawn(rank, 2, run, name, nbytes, kind)[0]
        except (Lacking, UnavailableError) as error:  # torch, or NVRTC for what is paced
            run.details[key] = str(error)
            lacking.add(name)
            continue
        finally:
            pace.set_rate(0)
        found[key] = result
        run.details[key] = result.as_dict() | {"plan": str(advice), "reckoned": reckoned}
        run.checks += 1
        print(f"{key}; plan: {advice}\nadvise: {reckoned}\n{result}\n")
        run.note("; ".join(f"{k}: {r.verdict}" for k, r in found.items()))
    return "; ".join(f"{key}: {result.verdict}" for key, result in found.items())


def rank(comm: Any, run: Run, name: str, nbytes: int, kind: str) -> tuple[Any, Any, str]:
    """Measure as one of two ranks."""
    from device import Pool

    from pycoll import overlap
    from pycoll.overlap.occupancy import resident

    room = 0 if run.stand_in else 3 * 4096 * 4096 * 4 + (256 << 20)
    pool = Pool(run.device, (1 << 20) + 3 * nbytes + room)
    comm.cuda(run.device)
    x = pool.empty(nbytes // 4).fill(0)
    out = pool.empty(comm.size * x.size) if kind == "allgather" else x

    def collective(stream: Any) -> None:
        with comm.on_stream(stream):
            comm.allreduce(x) if kind == "allreduce" else comm.allgather(x, out)

    # Loading waits for kernels that run: nobody's collective runs before all have all.
    if kind == "allreduce":
        comm.plan("allreduce", x)
    else:
        comm.plan("allgather", x, out)
    compute, shaped, advice, work = computation(comm, run, name, pool)
    reckoned = "" if work is None else advised(comm, work, nbytes, kind)
    # The ranks' blocks wait for each other's, and all lie on the same SMs: those that the driver
    # counts off first.
    own = comm.cuda()
    beside = overlap.Footprint(own.threads, own.registers, own.shared_bytes)
    sms = 8 * math.ceil(comm.size * own.blocks / resident(beside, limits_of(run.device)) / 8)
    comm.barrier()
    if comm.rank:  # it has a GPU of its own, in truth: here it only takes part
        nothing = lambda stream: None  # noqa: E731
        compute, shaped = nothing, nothing if shaped else None
    repeats = 5 if run.short else 15
    copies, copied = by_copies(comm, kind, x)
    how = {"comm": comm, "repeats": repeats, "sms": sms, "copies": copied}
    result = overlap.measure(compute, collective, shaped, **how)
    comm.barrier()  # to give the SMs back may wait for kernels
    if copies is not None:
        copies.close()
    return result, advice, reckoned


def limits_of(device: int) -> Any:
    """Return the limits of an SM of the GPU."""
    from pycoll.overlap.gpu import Gpu

    return Gpu(device).limits


def advised(comm: Any, work: Any, nbytes: int, kind: str) -> str:
    """Return what would have been advised for two GPUs that NVLink joins."""
    from pycoll import overlap
    from pycoll.errors import UnavailableError

    try:
        beside = overlap.Communication(kind, nbytes=nbytes, ranks=2)
        return overlap.advise(work, beside, comm, copies=kind == "allgather").verdict
    except UnavailableError as error:  # a GPU of which no data sheet is known
        return str(error)


def by_copies(comm: Any, kind: str, x: Any) -> tuple[Any, Any]:
    """Return copy engines, and what enqueues the collective by them; None without them."""
    from pycoll import overlap
    from pycoll.errors import UnavailableError

    if kind != "allgather":
        return None, None
    try:
        copies = overlap.copy_engine(comm, comm.size * x.nbytes)
    except UnavailableError as error:  # on all ranks
        print(error)
        return None, None
    out = copies.empty(comm.size * x.size)
    return copies, lambda stream: copies.allgather(x, out, stream)


def computation(comm: Any, run: Run, name: str, pool: Any) -> tuple[Any, Any, Any, Any]:
    """Return what computes, what does so shaped where that can be, the plan, and what it does."""
    import kernels

    from pycoll import overlap
    from pycoll.overlap.gpu import Gpu
    from pycoll.runtime.native import cuda
    from pycoll.runtime.native.load import ffi

    gpu = cuda.device(run.device)
    if name == "torch":  # cuBLAS: nobody shapes that
        torch = _torch()
        a = torch.randn(4096, 4096, device=f"cuda:{run.device}", dtype=torch.bfloat16)
        return (lambda stream: torch.matmul(a, a)), None, "cuBLAS chooses its launches itself", None
    load = kernels.played if run.stand_in else kernels.load
    handles = load(run.device, run.carried)
    threads, flops, moved = kernels.THREADS, 1.0, 1.0
    if run.stand_in:
        data, grid, threads = pool.empty(1000).fill(0), (1, 1, 1), 4
        arguments = [ffi.new("uint64_t *", data.address), ffi.new("uint64_t *", data.size)]
        arguments.append(ffi.new("uint32_t *", 3))
    elif name == "chain":
        data = pool.empty(32 << 20).fill(0)
        arguments = [
            ffi.new("uint64_t *", data.address),
            ffi.new("uint32_t *", data.size),
            ffi.new("uint32_t *", 32),
        ]
        grid = (gpu.multiprocessors * 64, 1, 1)
        flops, moved = 2.0 * 32 * data.size, 2.0 * data.nbytes
    else:
        n = 1024 if run.short else 4096
        a, b, c = (pool.empty(n * n).fill(0) for _ in range(3))
        arguments = [ffi.new("uint64_t *", array.address) for array in (a, b, c)]
        arguments.append(ffi.new("uint32_t *", n))
        grid = (n // kernels.TILE, n // kernels.TILE, 1)
        flops, moved = 2.0 * n**3, 3.0 * a.nbytes
    work = kernels.Computation(run.device, handles[name], grid, threads, arguments)
    advice = overlap.plan(handles[name], kernels.THREADS, comm)
    shaped = work.padded(advice.pad_bytes) if advice.capped < advice.natural else None
    block = Gpu(run.device).function(handles[name], kernels.THREADS, 0)
    done = overlap.Computation(block, math.prod(grid), flops=flops, nbytes=moved)
    return work.padded(0), shaped, advice, done


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Lacking(f"torch does not load ({error})") from error
    if not torch.cuda.is_available():
        raise Lacking("torch finds no GPU")
    return torch


if __name__ == "__main__":
    main(phase)
