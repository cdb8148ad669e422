"""A computation beside a collective, in five ways: pycoll.overlap on the GPU that is there.

Two ranks share the GPU, as threads: one computes, both take part in the collective. Nothing paces
it: it runs at the speed of the GPU's memory, as no link lies between the ranks.
"""

from __future__ import annotations

from typing import Any

from phase import Lacking, Run, main

MESSAGES = (1 << 20, 16 << 20, 64 << 20)


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    import together

    from pycoll.benchmark import report
    from pycoll.overlap.result import Measured

    found: dict[str, Measured] = {}
    messages = (4096,) if run.stand_in else MESSAGES[:1] if run.short else MESSAGES
    names = ("chain", "product", "torch")
    if run.first:
        messages, names = messages[-2:-1] or messages, ("chain", "torch")
    for name in names:
        for nbytes in messages:
            key = f"{name}, {report.nbytes(nbytes)}"
            if not run.time_for(key, 10.0):
                continue
            try:
                result, advice = together.spawn(rank, 2, run, name, nbytes)[0]
            except Lacking as lacking:
                run.details[key] = str(lacking)
                break
            found[key] = result
            run.details[key] = result.as_dict() | {"plan": str(advice)}
            run.checks += 1
            print(f"{key}; plan: {advice}\n{result}\n")
            run.note("; ".join(f"{k}: {r.verdict}" for k, r in found.items()))
    return "; ".join(f"{key}: {result.verdict}" for key, result in found.items())


def rank(comm: Any, run: Run, name: str, nbytes: int) -> tuple[Any, Any]:
    """Measure as one of two ranks."""
    from device import Pool

    from pycoll import overlap

    room = 0 if run.stand_in else 3 * 4096 * 4096 * 4 + (256 << 20)
    pool = Pool(run.device, (1 << 20) + nbytes + room)
    comm.cuda(run.device)
    x = pool.empty(nbytes // 4).fill(0)

    def collective(stream: Any) -> None:
        with comm.on_stream(stream):
            comm.allreduce(x)

    # Loading waits for kernels that run: nobody's collective runs before all have all.
    comm.plan("allreduce", x)
    compute, shaped, advice = computation(comm, run, name, pool)
    comm.barrier()
    if comm.rank:  # it has a GPU of its own, in truth: here it only takes part
        nothing = lambda stream: None  # noqa: E731
        compute, shaped = nothing, nothing if shaped else None
    repeats = 5 if run.short else 15
    return overlap.measure(compute, collective, shaped, comm=comm, repeats=repeats), advice


def computation(comm: Any, run: Run, name: str, pool: Any) -> tuple[Any, Any, Any]:
    """Return what computes, what does so shaped where that can be, and the advice."""
    import kernels

    from pycoll import overlap
    from pycoll.runtime.native import cuda
    from pycoll.runtime.native.load import ffi

    gpu = cuda.device(run.device)
    if name == "torch":  # cuBLAS: nobody shapes that
        torch = _torch()
        a = torch.randn(4096, 4096, device=f"cuda:{run.device}", dtype=torch.bfloat16)
        return (lambda stream: torch.matmul(a, a)), None, "cuBLAS chooses its launches itself"
    load = kernels.played if run.stand_in else kernels.load
    handles = load(run.device, run.carried)
    threads = kernels.THREADS
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
    else:
        n = 1024 if run.short else 4096
        a, b, c = (pool.empty(n * n).fill(0) for _ in range(3))
        arguments = [ffi.new("uint64_t *", array.address) for array in (a, b, c)]
        arguments.append(ffi.new("uint32_t *", n))
        grid = (n // kernels.TILE, n // kernels.TILE, 1)
    work = kernels.Computation(run.device, handles[name], grid, threads, arguments)
    advice = overlap.plan(handles[name], kernels.THREADS, comm)
    shaped = work.padded(advice.pad_bytes) if advice.capped < advice.natural else None
    return work.padded(0), shaped, advice


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
