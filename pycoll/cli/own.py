"""pycoll's own part in the benchmark: its arrays, and every form of call that was asked for."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pycoll.cli import target
from pycoll.cli.data import Array, Problem
from pycoll.cli.measure import Case
from pycoll.cli.peers import pingpong


class Own:
    """pycoll's cases: every mix of algorithm, arrays and call that was asked for."""

    def __init__(self, comm: Any, options: argparse.Namespace, count: int) -> None:
        self._comm = comm
        self._options = options
        # None: the library's choice. A name stays one; a function of a file is loaded.
        self._algorithms = [
            target.load(name, options.collective) if ":" in name else name
            for name in options.algorithm
        ] or [None]
        # Allocated once at the largest size: page faults are not what is measured.
        self.memory = self._pair(np.empty, count)  #: of the libraries that pycoll is set against
        self._pools = {"numpy": self.memory}
        if options.arrays != "numpy":
            self._pools["empty"] = self._pair(comm.empty, count)
        if options.arrays == "empty":
            del self._pools["numpy"]

    def _pair(self, make: Callable[..., Array], count: int) -> tuple[Array, Array]:
        memory = make(count, self._options.dtype)
        return memory, memory if self._options.in_place else make(count, self._options.dtype)

    def cases(self, problem: Problem) -> Iterator[Case]:
        """Yield pycoll's cases for one problem."""
        for kind, pool in self._pools.items():
            x, out = problem.arrays(*pool)
            for algorithm in self._algorithms:
                yield from self._forms(problem, kind, x, out, algorithm)

    def _forms(
        self, problem: Problem, kind: str, x: Array, out: Array, algorithm: Any
    ) -> Iterator[Case]:
        name, in_place = problem.operation.name, self._options.in_place
        case = functools.partial(Case, x=x, out=out, in_place=in_place)
        if name == "sendrecv":
            right, left = (self._comm.rank + 1) % problem.size, (self._comm.rank - 1) % problem.size
            exchange = functools.partial(self._comm.exchange, [(x, right)], [(out, left)])
            yield case("pycoll", "-", "-", kind, "call", run=exchange)
        elif name == "pingpong":
            call = pingpong(problem, self._comm.send, self._comm.recv, x, out)
            yield case("pycoll", "-", "-", kind, "call", run=call)
        else:
            arguments, more = _arguments(problem, x, out, in_place)
            if algorithm is not None:
                more["algorithm"] = algorithm
            plan = self._comm.plan(name, *arguments, **more)
            bound = functools.partial(getattr(self._comm, name), *arguments, **more)
            for form, run in (("call", bound), ("plan", plan)):
                if self._options.call in (form, "both"):
                    yield case("pycoll", plan.algorithm, plan.transport, kind, form, run=run)


def _arguments(
    problem: Problem, x: Array, out: Array, in_place: bool
) -> tuple[tuple[Array | None, ...], dict[str, Any]]:
    """Return what a collective is called with on this rank."""
    operation, root = problem.operation, problem.rank == 0
    more = {"op": problem.op.name.lower()} if problem.operation.reduces else {}
    if problem.op.name == "SUM":
        more = {}  # the default, as most callers leave it
    if operation.name == "broadcast" or out is x:
        return (x,), more
    if operation.name in ("reduce", "gather"):
        return (x, out if root else None), more
    if operation.name == "scatter":
        return (x if root else None, None if in_place and root else out), more
    return (x, out), more
