"""One rank of bench/torch/collectives.py."""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from pycoll.benchmark import metadata
from pycoll.benchmark.timing import back_to_back, rotated
from pycoll.interop.torch_backend import register

#: A block of calls lasts so long at least, so that the clock does not count.
BLOCK_SECONDS = 0.002
METHOD = (
    "libraries alternate within one job; per repeat one block of back-to-back blocking calls each, "
    "in rotated order, at least 2 ms long; the time of a repeat is the slowest rank's; min, median "
    "and p99 are over the repeats; garbage collector off in blocks; before every block one call on "
    "new random data, every element checked, outputs poisoned. gloo, pycoll: torch.distributed's "
    "function; backend: the process group's method, with its options made before; communicator: "
    "the Communicator's method on the same tensors, and on numpy's arrays of the same memory"
)

# Their names since torch 2.13; the older ones warn, which takes time.
ALL_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Call = Callable[[], Any]


class Case:
    """A collective on tensors of one size."""

    def __init__(self, name: str, nbytes: int, groups: dict[str, Any]) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        count = nbytes // 4
        self.whole, self.part = torch.empty(count), torch.empty(max(1, count // self.size))
        if count % self.size:  # fewer elements than ranks: each has one
            self.whole = torch.empty(self.size * self.part.numel())
        x, part, comm = self.whole, self.part, groups["pycoll"].communicator
        self.calls: dict[str, Call] = {}
        pg = groups["pycoll"]
        if name == "all_reduce":
            self.x = self.out = x = self.whole = torch.empty(count)
            opts = c10d.AllreduceOptions()
            both = lambda g: dist.all_reduce(x, group=g)  # noqa: E731
            a = x.numpy()
            mine = (
                lambda: pg.allreduce([x], opts).wait(),
                lambda: comm.allreduce(x),
                lambda: comm.allreduce(a),
            )
        elif name == "broadcast":
            self.x = self.out = x = self.whole = torch.empty(count)
            opts = c10d.BroadcastOptions()
            both = lambda g: dist.broadcast(x, 0, group=g)  # noqa: E731
            a = x.numpy()
            mine = (
                lambda: pg.broadcast([x], opts).wait(),
                lambda: comm.broadcast(x),
                lambda: comm.broadcast(a),
            )
        elif name == "all_gather_into_tensor":
            self.x, self.out, a, b = part, x, x.numpy(), part.numpy()
            opts = c10d.AllgatherOptions()
            both = lambda g: ALL_GATHER(x, part, group=g)  # noqa: E731
            mine = (
                lambda: pg.all_gather_single(x, part, opts).wait(),
                lambda: comm.allgather(part, x),
                lambda: comm.allgather(b, a),
            )
        elif name == "reduce_scatter_tensor":
            self.x, self.out, a, b = x, part, x.numpy(), part.numpy()
            opts = c10d.ReduceScatterOptions()
            both = lambda g: REDUCE_SCATTER(part, x, group=g)  # noqa: E731
            mine = (
                lambda: pg.reduce_scatter_single(part, x, opts).wait(),
                lambda: comm.reduce_scatter(x, part),
                lambda: comm.reduce_scatter(a, b),
            )
        else:
            self.x, self.out = x, torch.empty_like(x)
            opts = c10d.AllToAllOptions()
            out = self.out
            a, b = x.numpy(), out.numpy()
            both = lambda g: dist.all_to_all_single(out, x, group=g)  # noqa: E731
            mine = (
                lambda: pg.all_to_all_single(out, x, [], [], opts).wait(),
                lambda: comm.alltoall(x, out),
                lambda: comm.alltoall(a, b),
            )
        opts.asyncOp = False
        self.name = name
        self.calls = {
            "gloo": lambda: both(groups["gloo"]),
            "pycoll": lambda: both(groups["pycoll"]),
            "backend": mine[0],
            "communicator": mine[1],
            "communicator numpy": mine[2],
        }

    def check(self, library: str, turn: int) -> None:
        """Make one call on random data and look at every element of the result."""
        every = [self._random(turn, rank) for rank in range(self.size)]
        self.out.fill_(float("nan"))
        self.x.copy_(every[self.rank])
        self.calls[library]()
        if self.name == "all_reduce":
            want = sum(every)
        elif self.name == "broadcast":
            want = every[0]
        elif self.name == "all_gather_into_tensor":
            want = torch.cat(every)
        elif self.name == "reduce_scatter_tensor":
            want = sum(every).chunk(self.size)[self.rank]
        else:
            want = torch.cat([x.chunk(self.size)[self.rank] for x in every])
        if not torch.equal(self.out, want):  # of two ranks a sum has one order
            sys.exit(f"{library} {self.name} of {self.x.nbytes} B: wrong")
        self.x.zero_()

    def _random(self, turn: int, rank: int) -> Any:
        source = torch.Generator().manual_seed(1000 * turn + rank)
        return torch.randn(self.x.numel(), generator=source)


def measure(case: Case, repeats: int, slowest: Callable[[float], float]) -> dict[str, list[float]]:
    """Seconds of a call by each library, one for each repeat."""
    libraries = list(case.calls)
    times: dict[str, list[float]] = {library: [] for library in libraries}
    blocks = {}
    for library in libraries:
        case.check(library, 0)
        once = min(slowest(back_to_back(case.calls[library], n) / n) for n in (1, 3))
        blocks[library] = max(1, min(5000, int(BLOCK_SECONDS / once) + 1))
    for turn in range(repeats):
        for library in rotated(libraries, turn):
            case.check(library, turn + 1)
            call = case.calls[library]
            gc.disable()
            dist.barrier()
            took = back_to_back(call, blocks[library])
            gc.enable()
            times[library].append(slowest(took / blocks[library]))
    return times


def main() -> None:
    path, most, repeats, *names = sys.argv[1:]
    register()  # where pycoll is not installed, nobody else does
    dist.init_process_group("pycoll")
    torch.set_num_threads(1)
    groups = {"pycoll": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    comm = groups["pycoll"].communicator
    took = torch.empty(1, dtype=torch.float64)

    def slowest(seconds: float) -> float:
        took.fill_(seconds)
        comm.allreduce(took, op="max")
        return took.item()

    rows = []
    for name in names:
        nbytes = 4
        while nbytes <= int(most):
            case = Case(name, nbytes, groups)
            turns = int(repeats) if nbytes < 16 << 20 else max(1, int(repeats) // 3)
            for library, times in measure(case, turns, slowest).items():
                us = sorted(1e6 * t for t in times)
                rows.append(
                    {
                        "library": library,
                        "collective": name,
                        "ranks": comm.size,
                        "dtype": "float32",
                        "nbytes": nbytes,
                        "time_us": {
                            "min": round(us[0], 3),
                            "median": round(statistics.median(us), 3),
                            "p99": round(us[min(len(us) - 1, int(0.99 * len(us)))], 3),
                        },
                    }
                )
            if comm.rank == 0:
                shown = {r["library"]: r["time_us"]["median"] for r in rows[-len(case.calls) :]}
                print(f"{name} {nbytes}: {shown}", flush=True)
            nbytes *= 4
    if comm.rank == 0:
        meta = metadata.collect("torch", comm.size, {"torch": torch.__version__}, comm.transport)
        meta["method"] = METHOD
        Path(path).write_text(json.dumps({"meta": meta, "rows": rows}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
