"""pycoll itself: its arrays, and every form of call that was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pycoll.benchmark import p2p
from pycoll.benchmark.problem import Array, Problem
from pycoll.benchmark.sweep import Sweep
from pycoll.benchmark.timing import Case


class Pycoll:
    """pycoll's cases: every mix of algorithm, arrays and call that was asked for."""

    def __init__(self, comm: Any, sweep: Sweep, nbytes: int) -> None:
        """Prepare.

        Args:
            comm: The communicator.
            sweep: In which forms it is called.
            nbytes: The longest array.
        """
        self._comm = comm
        self._sweep = sweep
        # Allocated once at the largest size: page faults are not what is measured.
        self._memory = self._pair(np.empty, nbytes)
        self._pools = {"numpy": self._memory}
        if sweep.arrays != "numpy":
            self._pools["empty"] = self._pair(comm.empty, nbytes)
        if sweep.arrays == "empty":
            del self._pools["numpy"]

    def _pair(self, make: Callable[..., Array], nbytes: int) -> tuple[Array, Array]:
        memory = make(nbytes, "uint8")
        return memory, memory if self._sweep.in_place else make(nbytes, "uint8")

    def arrays(self, problem: Problem) -> tuple[Array, Array]:
        """Return input and output for the libraries that pycoll is set against."""
        return problem.arrays(*_typed(self._memory, problem))

    def cases(self, problem: Problem) -> Iterator[Case]:
        """Yield pycoll's cases for one problem."""
        for kind, pool in self._pools.items():
            x, out = problem.arrays(*_typed(pool, problem))
            for algorithm in self._sweep.algorithms:
                yield from self._forms(problem, kind, x, out, algorithm)

    def _forms(
        self, problem: Problem, kind: str, x: Array, out: Array, algorithm: Any
    ) -> Iterator[Case]:
        comm, operation = self._comm, problem.operation
        case = functools.partial(
            Case, "pycoll", arrays=kind, x=x, out=out, in_place=self._sweep.in_place
        )
        if operation.between_two:
            yield case(algorithm="-", transport="-", call="call", run=self._pairs(problem, x, out))
            return
        arguments, more = _arguments(problem, x, out, self._sweep.in_place)
        if algorithm is not None:
            more["algorithm"] = algorithm
        bound = functools.partial(getattr(comm, operation.name), *arguments, **more)
        name, transport, forms = "-", comm.transport, {"call": bound}
        if operation.collective:
            # `plan` has one name for a collective with and without counts.
            first = {"counts": arguments[1]} if operation.counted else {}
            rest = (arguments[0], *arguments[2:]) if operation.counted else arguments
            plan = comm.plan(operation.collective, *rest, **first, **more)
            name, transport, forms["plan"] = plan.algorithm, plan.transport, plan
        if self._sweep.overlap:
            started = functools.partial(bound, async_op=True)
            begin = functools.partial(_begin, started)
            run = functools.partial(_begin_and_wait, started)
            yield case(algorithm=name, transport=transport, call="async", run=run, begin=begin)
            return
        for form, run in forms.items():
            if self._sweep.call in (form, "both"):
                yield case(algorithm=name, transport=transport, call=form, run=run)

    def _pairs(self, problem: Problem, x: Array, out: Array) -> Callable[[], object]:
        comm, answer = self._comm, np.zeros(1, x.dtype)

        def shift(right: int, left: int) -> Callable[[], object]:
            return functools.partial(comm.exchange, [(x, right)], [(out, left)])

        move = comm.exchange
        if not (problem.sends and problem.receives):
            # One way, sends need not be given together: each returns when its array may be written
            # again, while the receiver is still at those before.
            move = functools.partial(_one_by_one, comm)
        return p2p.bind(problem, shift, move, comm.send, comm.recv, x, out, answer)


def _typed(pool: tuple[Array, Array], problem: Problem) -> tuple[Array, Array]:
    """Return memory as elements of the problem's type."""
    dtype = problem.input.dtype
    first, second = (memory[: memory.size // dtype.itemsize * dtype.itemsize] for memory in pool)
    whole = first.view(dtype)
    return whole, whole if pool[0] is pool[1] else second.view(dtype)


def _one_by_one(comm: Any, sends: list[tuple[Any, int]], recvs: list[tuple[Any, int]]) -> None:
    for array, peer in sends:
        comm.send(array, peer)
    for array, peer in recvs:
        comm.recv(array, peer)


def _begin(started: Callable[[], Any]) -> Callable[[], object]:
    wait: Callable[[], object] = started().wait
    return wait


def _begin_and_wait(started: Callable[[], Any]) -> None:
    started().wait()


def _arguments(
    problem: Problem, x: Array, out: Array, in_place: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a collective is called with on this rank."""
    operation, at_root = problem.operation, problem.rank == problem.root
    more: dict[str, Any] = {}
    if operation.reduces and problem.op.name != "SUM":  # the default, as most callers leave it
        more["op"] = problem.op.name.lower()
    if operation.rooted and problem.root:
        more["root"] = problem.root
    if not operation.sized:
        return (), more
    counts, given, got = problem.lengths.counts, x if at_root else None, out if at_root else None
    left = None if in_place and at_root else out
    forms: dict[str, tuple[Any, ...]] = {
        "broadcast": (x,),
        "reduce": (x, got),
        "gather": (x, got),
        "scatter": (given, left),
        "alltoallv": (x, problem.sent_by(problem.rank).counts, out, problem.received().counts),
        "gatherv": (x, counts if at_root else None, got),
        "scatterv": (given, counts if at_root else None, left),
    }
    if out is x and not operation.counted:
        return (x,), more
    usual = (x, counts, out) if operation.counted else (x, out)
    return forms.get(operation.name, usual), more
