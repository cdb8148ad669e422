"""One rank's whole contest: all sizes, all modes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from contest import Contest, Ranks
from figures import floor_seconds, line
from libraries import Pycoll, WithNccl

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import BY_NAME, ReduceOp

COPIED = 1 << 30  #: bytes that the measured copy within the GPU reads and writes, as far as asked


def measure(
    comm: Any,
    ranks: Ranks,
    device: int,
    nccl: Any,
    sizes: tuple[int, ...],
    blocks: int | None,
    shared: bool,
    options: argparse.Namespace,
    keep: Callable[[dict[str, Any]], object],
) -> list[dict[str, Any]]:
    """Return the rows of all sizes, as far as ``--seconds`` go; all ranks call this alike.

    Args:
        comm: pycoll's communicator.
        ranks: How the ranks compare times.
        device: This rank's GPU.
        nccl: Its communicator of NCCL's, or None.
        sizes: Bytes of the messages.
        blocks: What NCCL was held to.
        shared: All ranks share one GPU: there is a floor that its memory sets.
        options: The command line.
        keep: Told each row as soon as it is measured, on rank 0.
    """
    libraries: list[Any] = [Pycoll(comm)]
    if nccl is not None:
        libraries.append(WithNccl(nccl, blocks))
    copied = min(COPIED, max(1 << 20, sizes[-1]))
    here = Contest(device, ranks, max(copied, sizes[-1] + 4096))
    seconds = max(ranks.gather(here.copy_seconds(copied) if comm.rank == 0 else 0.0))
    operation, itemsize = OPERATIONS[options.collective], BY_NAME[options.dtype].itemsize
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.seconds
    for mode in options.modes.split(","):
        for nbytes in sizes:
            unit = itemsize * (comm.size if operation.blocks else 1)
            count = max(1, nbytes // unit) * (unit // itemsize)
            problem = Problem(operation, count, options.dtype, ReduceOp.SUM, comm.rank, comm.size)
            floor = floor_seconds(comm.size, problem.nbytes, copied, seconds) * 1e6
            # Rank 0's clock decides for all.
            if max(ranks.gather(float(comm.rank == 0 and time.monotonic() > until))):
                if comm.rank == 0:
                    print(f"# no time left for {nbytes} B, {mode}, and what follows", flush=True)
                return rows
            for row in here.run(problem, libraries, mode, options.repeats):
                if shared:
                    row |= {"floor_us": floor, "of_floor": floor / row["time_us"]["median"]}
                rows.append(row)
                if comm.rank == 0:
                    print(line(row), flush=True)
                    keep(row)
    return rows
