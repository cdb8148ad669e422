"""A profiler of pycoll's sees what torch calls; before and after it native code serves that."""

from __future__ import annotations

import both
import torch
import torch.distributed as dist

import pycoll


def calls() -> None:
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    x, whole = torch.ones(4), torch.ones(8)
    parts = [torch.ones(4), torch.ones(4)] if rank == 0 else None
    for _ in range(2):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.broadcast(x, 0)
    dist.reduce(x, 1)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(x, whole)
    dist.all_to_all_single(torch.empty(8), whole)
    dist.gather(x, parts)
    dist.barrier()
    dist.all_reduce(x, async_op=True).wait()
    (dist.send if rank == 0 else dist.recv)(x, peer)


def wanted(rank: int) -> list[tuple[str, int, str | None]]:
    f4 = "float32"
    return [
        *[("allreduce", 16, f4)] * 2,
        ("broadcast", 16, f4),
        ("reduce", 16, f4),
        ("allgather", 16, f4),
        ("reduce_scatter", 32, f4),
        ("alltoall", 32, f4),
        ("gather", 16 if rank else 48, f4),  # all that it sends and receives
        ("barrier", 0, None),
        ("allreduce", 16, f4),
        ("recv" if rank else "send", 16, f4),
    ]


def main() -> None:
    group, _ = both.begin()
    calls()  # after which all of them are known to native code
    native = group._pointers
    seen: list[pycoll.CallEvent] = []
    with pycoll.register_profiler(seen.append):
        assert group._pointers is not native
        late = dist.new_group()
        assert late._pointers is not late._native
        calls()
    assert group._pointers is native
    assert late._pointers is late._native
    calls()
    begun = [event for event in seen if event.phase == "begin" and event.communicator == "job"]
    ended = [event for event in seen if event.phase == "end" and event.communicator == "job"]
    found = [(event.collective, event.nbytes, event.dtype) for event in begun]
    assert found == wanted(dist.get_rank()), found
    assert [e.sequence for e in ended] == [e.sequence for e in begun]
    assert all(event.error is None for event in ended)
    assert {event.op for event in begun if event.collective == "allreduce"} == {"max", "sum"}
    torch.manual_seed(0)
    both.end()


if __name__ == "__main__":
    main()
