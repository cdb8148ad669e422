"""One rank of the benchmark: every size, dtype and operator that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pycoll.benchmark import backends, memory, metadata, oob, oversubscription, report
from pycoll.benchmark.backends.pycoll import Pycoll
from pycoll.benchmark.barrier import BarrierProblem
from pycoll.benchmark.datatypes import element
from pycoll.benchmark.overlap import Overlap, overlap
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.sweep import Sweep
from pycoll.benchmark.timing import BLOCK_SECONDS, Case, Rules, measure
from pycoll.bootstrap import torchrun
from pycoll.dtypes import reduce_op
from pycoll.errors import UnavailableError, UsageError


class Session:
    """What one rank does from its first row to its last; all ranks do it alike."""

    def __init__(
        self,
        comm: Any,
        sweep: Sweep,
        others: Sequence[backends.Backend],
        versions: dict[str, str],
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Look at the machine, and refuse what cannot be measured on it.

        Args:
            comm: The communicator.
            sweep: What is to be timed.
            others: The libraries that take turns with pycoll.
            versions: Of what is not among them.
            progress: Gets a line on what goes on, and "" where a row has ended.

        Raises:
            UsageError: The ranks are too few, or the root is none of them.
            UnavailableError: A host has too little memory.
        """
        self._comm, self._sweep, self._others, self._progress = comm, sweep, others, progress
        self._gather = oob.gather(comm, [other.settle for other in others])
        self._operation = sweep.operation
        if sweep.root >= comm.size:
            raise UsageError(f"--root is {sweep.root}, want 0 to {comm.size - 1}")
        if self._operation.between_two and comm.size == 1 and self._operation.name != "sendrecv":
            raise UsageError(
                f"{self._operation.name} is between two ranks, and there is one; start with "
                "mpirun -n 2, or add --ranks 2"
            )
        self.left_out: list[str] = []  #: what was asked for by "all" and is not served
        self._todo = [
            (dtype, op, nbytes)
            for dtype in self._served()
            for op in sweep.ops
            for nbytes in sweep.sizes(element(dtype).itemsize, comm.size)
        ]
        for other in others:
            versions = versions | other.versions
        self.meta = metadata.collect(
            torchrun.program() if comm.launcher == "torchrun" else comm.launcher,
            comm.size,
            versions,
            comm.transport,
            oversubscription.look(comm),
        )
        self.meta["left_out"] = self.left_out
        self._longest = max((size for _, _, size in self._todo), default=0) * sweep.window
        self._require_room()

    def _served(self) -> Iterator[str]:
        """Yield the dtypes to go through; what "all" names may not be served."""
        for dtype in self._sweep.dtypes:
            try:
                self._comm.broadcast(np.zeros(1, element(dtype)))
            except (UnavailableError, UsageError) as error:
                if len(self._sweep.dtypes) == 1:
                    raise
                self.left_out.append(f"{dtype}: {error}")
            else:
                yield dtype

    def rows(self) -> Iterator[report.Row]:
        """Time everything; yield a row as soon as it is known."""
        own = Pycoll(self._comm, self._sweep, self._longest)
        # Ranks that share a core enter a block one after the other: it must be long against that.
        turns = max(1, self._comm.size // (self.meta["machine"]["cores"] or 1))
        sweep = self._sweep
        rules = Rules(sweep.repeats, sweep.iters, sweep.warmup, BLOCK_SECONDS * turns)
        for number, (dtype, op, size) in enumerate(self._todo):
            what = [report.nbytes(size), dtype] if self._operation.sized else []
            what += [op] if self._operation.reduces else []
            place = " ".join([*what, f"({number + 1} of {len(self._todo)})"])
            yield from self._timed(own, self._problem(dtype, op, size), rules, place)

    def _require_room(self) -> None:
        """Refuse, on all ranks alike, what some host has no room for."""
        found = self._comm.allgather_object((oversubscription.location().clock, memory.available()))
        for host in dict.fromkeys(clock for clock, _ in found):
            here = [free for clock, free in found if clock == host]
            memory.require(self._longest, len(here), here[0])

    def _problem(self, dtype: str, op: str, size: int) -> Problem:
        comm, sweep = self._comm, self._sweep
        if not self._operation.sized:
            return BarrierProblem(comm.rank, comm.size)
        count = size // element(dtype).itemsize
        place = comm.rank, comm.size, sweep.root, sweep.window
        return Problem(self._operation, count, dtype, reduce_op(op), *place)

    def _timed(
        self, own: Pycoll, problem: Problem, rules: Rules, place: str
    ) -> Iterator[report.Row]:
        def progress(text: str) -> None:
            self._progress(f"{place}: {text}")

        cases = [*own.cases(problem), *self._against(own, problem)]
        timings = measure(cases, problem, self._gather, rules, progress)
        for case, timing in zip(cases, timings, strict=True):
            beside: Overlap | None = None
            if case.begin is not None:
                progress(f"{case.library}: with computation")
                seconds = max(self._gather(timing.median * 1e-6))
                calls = rules.calls or max(1, int(rules.block_seconds / seconds))
                beside = overlap(case, problem, self._gather, rules.repeats, calls, seconds)
            self._progress("")
            yield report.row(case, timing, problem, beside)

    def _against(self, own: Pycoll, problem: Problem) -> Iterator[Case]:
        """Yield the other libraries' cases; one may not serve all of "all"."""
        sweep = self._sweep
        x, out = own.arrays(problem)
        for other in self._others:
            begin: backends.Begin | None = None
            try:
                if sweep.overlap:
                    begin = other.begin(problem, x, out, sweep.in_place)
                    call = _waited(begin)
                else:
                    call = other.bind(problem, x, out, sweep.in_place)
            except UsageError as error:
                if not sweep.every:
                    raise
                self._leave_out(str(error).partition("; leave")[0])
                continue
            form = "async" if begin else "call"
            yield Case(
                other.name,
                "default",
                "default",
                "numpy",
                form,
                x,
                out,
                call,
                begin=begin,
                in_place=sweep.in_place,
            )

    def _leave_out(self, why: str) -> None:
        if why not in self.left_out:
            self.left_out.append(why)


def _waited(begin: backends.Begin) -> backends.Call:
    def begin_and_wait() -> None:
        begin()()

    return begin_and_wait
