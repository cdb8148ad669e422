"""One rank's whole contest: all sizes, all modes."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import Contest, Ranks
from figures import line, touched
from floors import Floors
from libraries import Pycoll, WithNccl

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import BY_NAME, ReduceOp
from pycoll.errors import UnavailableError

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
        shared: All ranks share one GPU: there are floors that its memory and its blocks set.
        options: The command line.
        keep: Told each row as soon as it is measured, on rank 0.
    """
    libraries: list[Any] = [Pycoll(comm)]
    if nccl is not None:
        libraries.append(WithNccl(nccl, blocks))
    longest = max(sizes)
    copied = min(COPIED, max(1 << 20, longest))
    arrays = comm if options.empty else None
    here = Contest(device, ranks, max(copied, longest + 4096), arrays)
    # Rank 0 measures while the others wait, as nothing else may run.
    floors, rate = None, 0.0
    if shared and comm.rank == 0:
        floors = load_floors(device, options.carried, options.stand_in)
        rate = 2 * copied / here.copy_seconds(copied)
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.seconds
    names, modes = options.collective.split(","), options.modes.split(",")
    for name, mode, nbytes in itertools.product(names, modes, sizes):
        operation, itemsize = OPERATIONS[name], BY_NAME[options.dtype].itemsize
        unit = itemsize * (comm.size if operation.blocks else 1)
        count = max(1, nbytes // unit) * (unit // itemsize)
        # Rank 0's clock decides for all.
        if max(ranks.gather(float(comm.rank == 0 and time.monotonic() > until))):
            if comm.rank == 0:
                print(
                    f"# no time left for {name}, {nbytes} B, {mode}, and what follows", flush=True
                )
            break
        problem = Problem(operation, count, options.dtype, ReduceOp.SUM, comm.rank, comm.size)
        for row in here.run(problem, libraries, mode, options.repeats):
            rows.append(row)
            if comm.rank == 0:
                if rate:
                    add_floors(row, problem, rate, floors)
                print(line(row), flush=True)
                keep(row)
    return rows


def add_floors(row: dict[str, Any], problem: Problem, rate: float, floors: Floors | None) -> None:
    """Add what no call on one GPU can go below, and how near the row comes.

    Args:
        row: What was measured.
        problem: Of which.
        rate: Bytes per second that the GPU's own copy reads and writes.
        floors: What blocks take; None: there is nobody to ask.
    """
    nbytes = touched(problem.operation, problem.size, problem.nbytes)
    median = row["time_us"]["median"]
    row["floor_us"] = nbytes / rate * 1e6
    row["of_floor"] = row["floor_us"] / median
    if floors is None:
        return
    row["hop_us"] = floors.hop() * 1e6
    row["hops"] = median / row["hop_us"]
    if "blocks" in row:  # of all ranks together
        row["blocks_floor_us"] = nbytes / floors.copy(problem.size * row["blocks"]) * 1e6
        row["of_blocks_floor"] = row["blocks_floor_us"] / median


def load_floors(device: int, carried: Path | None, stand_in: bool) -> Floors | None:
    """Load what shows the floors; None where it can be neither loaded nor compiled."""
    try:
        return Floors(device, carried, stand_in)
    except UnavailableError as error:
        print(f"# no floors of blocks: {error}", flush=True)
        return None
