"""Calls of torch's are recorded with the line of whoever called torch."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pycoll.runtime.record import recorder


def here() -> int:
    return sys._getframe(1).f_lineno


def last() -> dict[str, Any]:
    events: list[dict[str, Any]] = recorder.record("test")["comms"][0]["events"]
    return events[-1]


def main() -> None:
    dist.init_process_group("pycoll")
    x = torch.ones(1000)
    checks: list[tuple[str, dict[str, Any], int]] = []
    dist.all_reduce(x)
    checks.append(("allreduce", last(), here() - 1))
    dist.barrier()
    checks.append(("barrier", last(), here() - 1))
    work = dist.all_reduce(x, async_op=True)
    at = here() - 1
    work.wait()
    checks.append(("allreduce", last(), at))
    every = [torch.empty(1000) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    checks.append(("allgather", last(), here() - 1))
    dist.broadcast(x, 0)
    checks.append(("broadcast", last(), here() - 1))
    dist.all_reduce(torch.ones(3, dtype=torch.float64))
    checks.append(("allreduce", last(), here() - 1))
    for call, event, line in checks:
        assert event["call"] == call, (event, call)
        assert event["line"] == f"{__file__}:{line}", (event, line)
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, "text")
    assert last()["line"] == f"{__file__}:{here() - 1}", last()
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    line = last()["line"]
    assert line is None or line.startswith(f"{__file__}:"), line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
