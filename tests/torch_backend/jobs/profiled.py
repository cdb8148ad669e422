"""torch's profiler shows every call by its name, with the shapes and dtypes of what it brings."""

from __future__ import annotations

import json
import sys
from typing import Any

import both
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

MATRIX, PAIR = [[4, 3]], [[4, 3], [4, 3]]


def calls() -> None:
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    x, y, short = torch.ones(4, 3), torch.ones(4, 3), torch.ones(5, dtype=torch.bfloat16)
    whole, parts = torch.ones(8, 3), [torch.ones(4, 3), torch.ones(4, 3)]
    dist.all_reduce(x)
    dist.all_reduce(short)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.all_gather_into_tensor(whole, x)
    dist.all_gather(parts, x)
    dist.reduce_scatter_tensor(x, whole)
    dist.reduce_scatter(x, parts)
    dist.all_to_all_single(torch.empty(8, 3), whole)
    dist.gather(x, parts if rank == 0 else None)
    dist.scatter(x, parts if rank == 0 else None)
    dist.barrier()
    (dist.send if rank == 0 else dist.recv)(x, peer)
    dist.all_reduce(x, async_op=True).wait()
    dist.group.WORLD.allreduce_coalesced([x, y]).wait()


def wanted(rank: int) -> list[tuple[str, Any]]:
    transfer = "pycoll:send" if rank == 0 else "pycoll:recv"
    return [
        ("pycoll:all_reduce", MATRIX),
        ("pycoll:all_reduce", [[5]]),
        ("pycoll:broadcast", MATRIX),
        ("pycoll:reduce", MATRIX),
        ("pycoll:all_gather", MATRIX),
        ("pycoll:all_gather", MATRIX),
        ("pycoll:reduce_scatter", [[8, 3]]),
        ("pycoll:reduce_scatter", PAIR),
        ("pycoll:all_to_all", [[8, 3]]),
        ("pycoll:gather", MATRIX),
        ("pycoll:scatter", PAIR if rank == 0 else []),
        ("pycoll:barrier", []),
        (transfer, MATRIX),
        (f"{transfer} wait", []),
        ("pycoll:all_reduce", MATRIX),
        ("pycoll:all_reduce wait", []),
        ("pycoll:all_reduce", PAIR),
        ("pycoll:all_reduce wait", []),
    ]


def seen(found: Any) -> list[tuple[str, Any]]:
    return [(e.name, e.input_shapes) for e in found.events() if e.name.startswith("pycoll:")]


def main() -> None:
    dist.init_process_group("pycoll")
    rank = dist.get_rank()
    calls()  # what has been called before goes the shortest way, which is to be seen as well
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        calls()
    assert seen(found) == wanted(rank), seen(found)
    found.export_chrome_trace(sys.argv[1] + str(rank))
    with open(sys.argv[1] + str(rank)) as trace:
        events = json.load(trace)["traceEvents"]
    kinds = [e["args"]["Input type"] for e in events if e.get("name") == "pycoll:all_reduce"]
    assert kinds == [["float"], ["c10::BFloat16"], ["float"], ["float", "float"]], kinds

    # An error ends its event, too; and DDP's calls, which C++ makes, are seen.
    wrapped = DistributedDataParallel(nn.Linear(8, 4))
    loss = wrapped(torch.ones(2, 8)).sum()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        small = torch.ones(3, dtype=torch.int16)
        assert "is not served" in both.refused(lambda: dist.all_reduce(small))
        loss.backward()
    assert seen(found) == [("pycoll:all_reduce", [[3]]), ("pycoll:all_reduce", [[36]])], seen(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
