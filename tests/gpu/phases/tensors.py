"""torch's CUDA tensors: on its streams, with its caching allocator, by DLPack."""

from __future__ import annotations

from typing import Any

from phase import Lacking, Run, main

CALLS = 50  #: whose tensors are freed at once


def phase(run: Run) -> str:
    from pycoll.runtime.native import cuda

    if lack := cuda.missing():
        raise Lacking(lack)
    try:
        import torch
    except ImportError as error:
        raise Lacking(f"torch does not load ({error}): pip install torch") from error
    if not torch.cuda.is_available():
        raise Lacking(f"torch {torch.__version__} finds no GPU")
    import together

    met = together.Meeting(2)
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64)

    def body(comm: Any) -> int:
        torch.cuda.set_device(run.device)
        comm.cuda(run.device)
        seat, checked = met.of(comm.rank), 0
        device = torch.device("cuda", run.device)
        stream = torch.cuda.Stream(device)
        for kind in kinds:
            for count in (1, 1000, 300_000):
                x = torch.full((count,), comm.rank + 1, dtype=kind, device=device)
                # cudaMalloc and the loading of a kernel may wait for kernels that run, and a
                # collective runs until the other thread has called it: all that is used beside one
                # is loaded here, and lies in the allocator's pool of the stream that will ask.
                comm.plan("allreduce", x)
                torch.cuda.synchronize(device)
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        y = x * 2
                        z = y + 0
                torch.cuda.synchronize(device)
                seat.gather(0.0)  # what follows allocates nothing new and loads nothing
                with torch.cuda.stream(stream):
                    comm.allreduce(x)
                    y = x * 2
                    work = comm.allreduce(y, async_op=True)
                    work.wait()
                    z = y + 0
                stream.synchronize()
                comm._collectives.launch.cuda.streams.open().check()
                seat.gather(0.0)  # nothing runs until both have met again
                # 1 + 2 = 3 on both; 6 on both; their sum is 12.
                if not bool((z == 12).all()):
                    raise AssertionError(f"{count} of {kind}: {z[:4]}, want 12")
                checked += 1
        # Freed while a call may still use it: the allocator was told. As many as may be held at
        # once are in its pool before: both threads take from the one of the default stream.
        x = torch.ones(1 << 18, device=device)
        comm.plan("allreduce", x)
        kept = [torch.full((1 << 18,), -7.0, device=device) for _ in range(2 * CALLS)]
        torch.cuda.synchronize(device)
        seat.gather(0.0)
        del x, kept
        seat.gather(0.0)
        for _ in range(CALLS):
            x = torch.ones(1 << 18, device=device)
            comm.allreduce(x, async_op=True)
            del x
            torch.full((1 << 18,), -7.0, device=device)
        torch.cuda.synchronize(device)
        comm._collectives.launch.cuda.streams.open().check()
        seat.gather(0.0)
        return checked

    checked = together.spawn(body, 2)[0]
    run.checks += checked
    return f"{checked} tensors of torch {torch.__version__}, on streams and beside them"


if __name__ == "__main__":
    main(phase)
