"""How do pycoll's collectives compare with NCCL's where every rank has a GPU of its own?

Run: mpirun -n 8 python bench/gpu/many_gpus.py [--collective allreduce] [--nccl libnccl.so.2]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[depth]) for depth in (1, 2)]
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

import arguments
import kernels
from figures import summary
from launch import RESULTS
from result import Result

import pycoll
from pycoll.benchmark import metadata
from pycoll.errors import UnavailableError

NAME = "gpu-many.json"


class Ranks:
    """The ranks compare times by the communicator itself, on the host."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def gather(self, value: float) -> list[float]:
        """Give every rank what each passed; all leave together."""
        found: list[float] = self._comm.allgather_object(value)
        return found


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    return arguments.parse(arguments.parser(__doc__, RESULTS / NAME), given)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.blocks:  # else both have as many as they like
        names = "NCCL_MAX_CTAS", "NCCL_MIN_CTAS", "PYCOLL_CUDA_BLOCKS"
        os.environ |= dict.fromkeys(names, str(options.blocks))
    if options.empty:
        os.environ["PYCOLL_CUDA_HEAP"] = arguments.heap(max(arguments.sizes(options)))
    with pycoll.init() as comm:
        try:
            rows = rank(comm, options)
        except UnavailableError as error:
            sys.exit(f"not measured: {error}")
        if comm.rank == 0:
            print(f"# wrote {options.output}")
            print(*summary(rows), sep="\n")
        sys.exit(any(row["wrong"] for row in rows))


def rank(comm: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one rank; rank 0 writes each row when it is measured.

    Raises:
        UnavailableError: There is no GPU, fewer than ranks, or no NCCL; on all ranks alike.
    """
    from pycoll.runtime.native import cuda

    lack = cuda.missing()
    if not lack and (found := cuda.devices()) < comm.local_size:
        lack = (
            f"{comm.local_size} ranks on a host with {found} GPUs: one_gpu.py is for ranks that "
            "share one"
        )
    if lack := next(filter(None, comm.allgather_object(lack)), ""):
        raise UnavailableError(lack)
    if options.stand_in:
        kernels.take_any()
    from cudriver import Driver
    from nccl import Nccl
    from rows import measure

    device = comm.local_rank
    nccl = None if options.alone else Nccl(options.nccl)
    joined = None
    if nccl is not None:
        unique = comm.broadcast_object(nccl.unique_id() if comm.rank == 0 else None)
        with Driver(device).current():  # by which NCCL knows the device
            joined = nccl.join(comm.rank, comm.size, unique)
    result = Result(options.output, meta(comm, device, nccl))
    try:
        sizes = arguments.sizes(options)
        given = sizes, options.blocks, False, options, result.add
        return measure(comm, Ranks(comm), device, joined, *given)
    finally:
        if joined is not None:
            joined.close()


def meta(comm: Any, device: int, nccl: Any) -> dict[str, Any]:
    """Return who measured what on which GPUs."""
    from contest import METHOD

    from pycoll.runtime.native import cuda

    gpu = cuda.device(device)
    versions = {"pycoll": pycoll.__version__, "cuda driver": str(gpu.driver)}
    versions |= {"nccl": nccl.version} if nccl else {}
    found = metadata.collect(comm.launcher, comm.size, versions, comm.transport)
    found["machine"] |= {"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
    return found | {"method": METHOD}


if __name__ == "__main__":
    main()
