"""One rank's side of pycoll and of NCCL, as `contest` wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device import Array
from nccl import Comm

from pycoll.benchmark.problem import Problem


class Pycoll:
    """A communicator whose arrays lie in GPU memory."""

    name = "pycoll"

    def __init__(self, comm: Any, algorithm: str | None = None) -> None:
        self._comm, self._options = comm, {} if algorithm is None else {"algorithm": algorithm}
        self._ran: dict[str, Any] = {}
        self._before = 0

    def bind(self, problem: Problem, x: Array, out: Array, stream: int) -> Callable[[], object]:
        """Return the call of the communicator's method."""
        comm, operation, options = self._comm, problem.operation, dict(self._options)
        if operation.reduces:
            options["op"] = problem.op.name.lower()
        if operation.name == "broadcast":
            arrays: list[Any] = [out]
        else:  # what only the root has is None elsewhere
            arrays = [array if array.size else None for array in (x, out)]
        with comm.on_stream(stream):  # a kernel that is loaded later may wait for those that run
            plan = comm.plan(operation.name, *arrays, **options)
        shape = plan.shape
        self._ran = {
            "algorithm": plan.algorithm,
            "transport": plan.transport,
            "blocks": shape.blocks,
            "instances": shape.instances,
            "direct_instances": shape.direct_instances,
            "protocol": shape.protocol,
            "threads": shape.threads,
        }
        self._before = self._direct()
        method = getattr(comm, operation.name)

        def call() -> None:
            with comm.on_stream(stream):
                method(*arrays, **options)

        return call

    def ran(self) -> dict[str, Any]:
        """Return what the kernel of the last bound call is, and how its calls have run.

        ``direct_calls`` read and wrote the ranks' arrays where they lie, replays of graphs among
        them, in the form that has ``direct_instances``.
        """
        return self._ran | {"direct_calls": self._direct() - self._before}

    def _direct(self) -> int:
        return int(self._comm._collectives.launch.cuda.streams.open().registered().direct)


class WithNccl:
    """A communicator of NCCL's."""

    name = "nccl"

    def __init__(self, comm: Comm, blocks: int | None) -> None:
        self._comm, self._blocks = comm, blocks

    def bind(self, problem: Problem, x: Array, out: Array, stream: int) -> Callable[[], object]:
        """Return the call of the library's function."""
        comm, name, op = self._comm, problem.operation.name, problem.op.name.lower()
        given = out if name == "broadcast" else x
        return lambda: comm.enqueue(name, given, out, stream, op)

    def ran(self) -> dict[str, Any]:
        """Return the bound of its blocks: it does not tell how many a call has."""
        return {"blocks_at_most": self._blocks}
