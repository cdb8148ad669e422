"""One rank's side of pycoll and of NCCL, as `contest` wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device import Array
from nccl import Comm

from pycoll.benchmark.problem import Problem
from pycoll.runtime.native import device_comm


class Pycoll:
    """A communicator whose arrays lie in GPU memory."""

    name = "pycoll"

    def __init__(self, comm: Any, algorithm: str | None = None) -> None:
        self._comm, self._algorithm = comm, algorithm
        self.ran: int | None = None  #: blocks of the last bound call

    def bind(self, problem: Problem, x: Array, out: Array, stream: int) -> Callable[[], object]:
        """Return the call of the communicator's method."""
        comm, name = self._comm, problem.operation.name
        method, options = getattr(comm, name), {}
        if problem.operation.reduces:
            options["op"] = problem.op.name.lower()

        if self._algorithm is not None:
            options["algorithm"] = self._algorithm
        with comm.on_stream(stream):  # a kernel that is loaded later may wait for those that run
            plan = comm.plan(name, x, None if name == "broadcast" else out, **options)
        *_, native = plan._owner
        self.ran = device_comm.device_plan_shape(native.handle).blocks

        def call() -> None:
            with comm.on_stream(stream):
                if name == "broadcast":
                    method(x, **options)
                else:
                    method(x, out, **options)

        return call

    def blocks(self) -> int | None:
        """Return the blocks of a call at most."""
        return int(self._comm.cuda().blocks)


class WithNccl:
    """A communicator of NCCL's."""

    name = "nccl"

    def __init__(self, comm: Comm, blocks: int | None) -> None:
        self._comm, self._blocks = comm, blocks

    def bind(self, problem: Problem, x: Array, out: Array, stream: int) -> Callable[[], object]:
        """Return the call of the library's function."""
        comm, name, op = self._comm, problem.operation.name, problem.op.name.lower()
        return lambda: comm.enqueue(name, x, out, stream, op)

    def blocks(self) -> int | None:
        """Return the blocks that it was held to."""
        return self._blocks
