"""Gloo, by torch.distributed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pycoll.benchmark import p2p
from pycoll.benchmark.backends.backend import Begin, Call, first_line
from pycoll.benchmark.oob import Share
from pycoll.benchmark.problem import Array, Problem
from pycoll.dtypes import ReduceOp
from pycoll.errors import UnavailableError, UsageError


class Gloo:
    """torch.distributed over its Gloo backend, on tensors that share the numpy arrays' memory."""

    name = "gloo"

    def __init__(self, rank: int, size: int, share: Share, address: str) -> None:
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise UnavailableError(
                f"gloo needs torch, which does not load ({first_line(error)}); "
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
        gloo, answer = self._distributed, self._torch.zeros(1, dtype=source.dtype)

        def shift(right: int, left: int) -> Call:
            def send_and_receive() -> None:
                sent = gloo.isend(source, right)
                gloo.recv(target, left)
                sent.wait()

            return send_and_receive

        ends = gloo.send, gloo.recv, source, target, answer
        return p2p.bind(problem, shift, self._exchange, *ends)

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
                f"torch and gloo do not serve {out.dtype} ({first_line(error)}); leave gloo out of "
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
        if name == "reduce":  # on every rank, Gloo works in the tensor that it is given
            if at_root or in_place:
                return _copy(x, out if at_root else x), bind(
                    gloo.reduce, target if at_root else source, root, op
                )
            work = self._torch.empty_like(source)
            return bind(work.copy_, source), bind(gloo.reduce, work, root, op)
        gather = getattr(gloo, "all_gather_single", None) or gloo.all_gather_into_tensor
        scatter = getattr(gloo, "reduce_scatter_single", None) or gloo.reduce_scatter_tensor
        received, sent = problem.received().counts, problem.sent_by(problem.rank).counts
        call, *arguments = {
            "allreduce": (gloo.all_reduce, target, op),
            "broadcast": (gloo.broadcast, target, root),
            "allgather": (gather, target, source),
            "reduce_scatter": (scatter, target, source, op),
            "alltoall": (gloo.all_to_all_single, target, source),
            "alltoallv": (gloo.all_to_all_single, target, source, list(received), list(sent)),
            "gather": (gloo.gather, source, _parts(target, problem), root),
            "scatter": (gloo.scatter, target, _parts(source, problem), root),
            "barrier": (gloo.barrier,),
        }[name]
        return _copy(x, out) if name == "allreduce" else None, bind(call, *arguments)

    def _exchange(self, sends: Any, recvs: Any) -> None:
        gloo = self._distributed
        works = [gloo.irecv(tensor, peer) for tensor, peer in recvs]
        works += [gloo.isend(tensor, peer) for tensor, peer in sends]
        for work in works:
            work.wait()

    def settle(self) -> None:
        """Nothing is left: Gloo's own threads send."""

    def close(self) -> None:
        """End the process group and its store."""
        self._distributed.destroy_process_group()


def _parts(whole: Any, problem: Problem) -> list[Any] | None:
    """Return the blocks of all ranks, which the root alone gives."""
    return list(whole.chunk(problem.size)) if problem.rank == problem.root else None


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
