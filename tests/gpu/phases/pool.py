"""cupy's arrays: parts of what its pool has, on its streams, between processes and threads."""

from __future__ import annotations

from typing import Any

from phase import Lacking, Run, main


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    try:
        import cupy
    except ImportError as error:
        raise Lacking(f"cupy does not load ({error}): pip install cupy-cuda12x") from error
    if not cupy.cuda.is_available():
        raise Lacking("cupy finds no GPU")
    import together

    met = together.Meeting(2)

    def body(comm: Any) -> int:
        cupy.cuda.Device(run.device).use()
        comm.cuda(run.device)
        seat, checked = met.of(comm.rank), 0
        # Several arrays in one chunk of the pool, and views that begin inside them.
        arrays = [cupy.full(4096, comm.rank + 1, cupy.float32) for _ in range(8)]
        stream = cupy.cuda.Stream(non_blocking=True)
        # cudaMalloc and the loading of a kernel may wait for kernels that run, and a collective
        # runs until the other thread has called it: all that is used beside one is loaded here, and
        # lies in cupy's pool of the stream that will ask for it.
        for i, x in enumerate(arrays):
            comm.plan("allreduce", x[i : 4096 - i])
        comm.plan("allgather", arrays[0][:10], cupy.empty(20, cupy.float32))
        with stream:
            kept = [arrays[0] * 2 for _ in range(4)]
        kept += [cupy.empty(20, cupy.float32) for _ in range(4)]
        stream.synchronize()
        seat.gather(0.0)  # both hold them, as both will
        del kept
        for i, x in enumerate(arrays):
            part = x[i : 4096 - i]
            cupy.cuda.Device().synchronize()
            seat.gather(0.0)  # what follows allocates nothing new and loads nothing
            with stream:
                comm.allreduce(part)
                doubled = part * 2  # ordered by the stream
            stream.synchronize()
            seat.gather(0.0)  # nothing runs until both have met again
            want = cupy.full(part.shape, 6.0, cupy.float32)
            if not bool((doubled == want).all()):
                raise AssertionError(f"array {i} of the pool: {doubled[:4]}, want 6")
            if i and float(x[0]) != comm.rank + 1:
                raise AssertionError(f"array {i}: what lies before the part has changed")
            checked += 1
        seat.gather(0.0)
        with stream:  # ranks that are threads share the default stream, and would wait for ever
            out = comm.allgather(arrays[0][:10])  # a new array of cupy's
        comm._collectives.launch.cuda.streams.open().check()
        stream.synchronize()
        if not isinstance(out, cupy.ndarray) or out.size != 20:
            raise AssertionError(f"allgather gave {type(out)} of {out.size}")
        return checked

    checked = together.spawn(body, 2)[0]
    run.checks += checked
    used = cupy.get_default_memory_pool().used_bytes()
    return f"{checked} parts of cupy {cupy.__version__}'s pool ({used} B used), by its streams"


if __name__ == "__main__":
    main(phase)
