"""One rank of the benchmark: every size, dtype and operator that was asked for."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import pycoll
from pycoll.benchmark import backends, memory, oob, oversubscription, plot, report
from pycoll.benchmark.barrier import Arrival
from pycoll.benchmark.datatypes import element
from pycoll.benchmark.overlap import Overlap, overlap
from pycoll.benchmark.problem import Operation, Problem
from pycoll.benchmark.timing import BLOCK_SECONDS, Case, Rules, measure
from pycoll.bootstrap import torchrun
from pycoll.cli.own import Own
from pycoll.config import Config
from pycoll.dtypes import reduce_op
from pycoll.errors import UnavailableError, UsageError


def sizes(
    smallest: int, largest: int, factor: int, unit: int, step: int | None = None
) -> Iterator[int]:
    """Yield the message sizes, each a whole number of units and at least one."""
    size, last = smallest, 0
    while size <= largest:
        whole = max(unit, size - size % unit)
        if whole != last:
            yield whole
        size, last = size + step if step else size * factor, whole


def work(options: argparse.Namespace) -> int:
    """Be one rank of the benchmark; returns 1 if any element was wrong."""
    try:
        with contextlib.ExitStack() as stack:
            comm = stack.enter_context(pycoll.init())
            others = _open(comm, options, stack)
            rows = _Session(comm, options, others).run()
    except MemoryError as error:
        raise UnavailableError(
            f"{report.nbytes(options.max)} is more than this machine gives memory for "
            f"({error}); lower --max, or --min"
        ) from error
    return int(any(row["wrong"] for row in rows))


def _open(
    comm: Any, options: argparse.Namespace, stack: contextlib.ExitStack
) -> list[backends.Peer]:
    address = comm._engine.bootstrap.address(Config.load().iface)
    others = []
    for name in options.against:
        share = oob.share(comm)
        others.append(backends.open_peer(name, comm.rank, comm.size, share, address))
        stack.callback(others[-1].close)
    return others


class _Session:
    """What one rank does from its first row to its last."""

    def __init__(
        self, comm: Any, options: argparse.Namespace, others: Sequence[backends.Peer]
    ) -> None:
        self._comm, self._options, self._others = comm, options, others
        self._gather = oob.gather(comm)
        self._first = comm.rank == 0
        self._operation: Operation = options.operation
        self._rows: list[report.Row] = []
        if options.root >= comm.size:
            raise UsageError(f"--root is {options.root}, want 0 to {comm.size - 1}")
        if self._operation.between_two and comm.size == 1 and self._operation.name != "sendrecv":
            raise UsageError(
                f"{self._operation.name} is between two ranks, and there is one; start with "
                "mpirun -n 2, or add --ranks 2"
            )
        self._left_out: list[str] = []  #: what was asked for by "all" and is not served
        self._sweep = self._served()

    def _served(self) -> list[tuple[str, str]]:
        """Return the dtypes and operators to go through; what "all" names may not be served."""
        found = []
        for dtype in self._options.dtypes:
            try:
                self._comm.broadcast(np.zeros(1, element(dtype)))
            except (UnavailableError, UsageError) as error:
                if not self._options.every_dtype:
                    raise
                self._left_out.append(f"{dtype}: {error}")
            else:
                found += [(dtype, op) for op in self._options.ops]
        return found

    def run(self) -> list[report.Row]:
        """Time everything; returns the rows."""
        comm, options = self._comm, self._options
        versions = {"pycoll": pycoll.__version__}
        for other in self._others:
            versions |= other.versions
        launcher = torchrun.program() if comm.launcher == "torchrun" else comm.launcher
        meta = report.meta(
            launcher, comm.size, versions, comm.transport, oversubscription.look(comm)
        )
        meta["left_out"] = self._left_out
        todo = [(dtype, op, size) for dtype, op in self._sweep for size in self._sizes(dtype)]
        longest = max((size for _, _, size in todo), default=0) * options.window
        self._require_room(longest)
        if self._first:
            extra = "rate" if self._operation.windowed else "overlap" * options.overlap
            print(report.head(meta, self._operation.name, options.in_place, extra), flush=True)
        own = Own(comm, options, longest)
        # Ranks that share a core enter a block one after the other: it must be long against that.
        seconds = BLOCK_SECONDS * max(1, comm.size // (meta["machine"]["cores"] or 1))
        rules = Rules(options.repeats, options.iters, options.warmup, seconds)
        for number, (dtype, op, size) in enumerate(todo):
            what = [report.nbytes(size), dtype] if self._operation.sized else []
            what += [op] if self._operation.reduces else []
            place = " ".join([*what, f"({number + 1} of {len(todo)})"])
            self._time(own, self._problem(dtype, op, size), rules, _progress(self._first, place))
        if self._first:
            self._finish(meta)
        return self._rows

    def _sizes(self, dtype: str) -> list[int]:
        if not self._operation.sized:
            return [0]
        options, itemsize = self._options, element(dtype).itemsize
        unit = itemsize * (self._comm.size if self._operation.blocks else 1)
        return list(sizes(options.min, options.max, options.factor, unit, options.step))

    def _require_room(self, nbytes: int) -> None:
        """Refuse, on all ranks alike, what some host has no room for."""
        found = self._comm.allgather_object((oversubscription.seat().clock, memory.available()))
        for host in dict.fromkeys(clock for clock, _ in found):
            here = [free for clock, free in found if clock == host]
            memory.require(nbytes, len(here), here[0])

    def _problem(self, dtype: str, op: str, size: int) -> Problem:
        comm, options = self._comm, self._options
        if not self._operation.sized:
            return Arrival(comm.rank, comm.size)
        count = size // element(dtype).itemsize
        place = comm.rank, comm.size, options.root, options.window
        return Problem(self._operation, count, dtype, reduce_op(op), *place)

    def _time(
        self, own: Own, problem: Problem, rules: Rules, progress: Callable[[str], None]
    ) -> None:
        cases = [*own.cases(problem), *self._against(own, problem)]
        timings = measure(cases, problem, self._gather, rules, progress)
        for case, timing in zip(cases, timings, strict=True):
            beside: Overlap | None = None
            if case.begin is not None:
                progress(f"{case.library}: with computation")
                seconds = max(self._gather(timing.median * 1e-6))
                calls = rules.calls or max(1, int(rules.block_seconds / seconds))
                beside = overlap(case, problem, self._gather, rules.repeats, calls, seconds)
            progress("")
            self._rows.append(report.row(case, timing, problem, beside))
            if self._first:
                print(report.line(self._rows[-1]), flush=True)

    def _against(self, own: Own, problem: Problem) -> Iterator[Case]:
        """Yield the other libraries' cases; one may not serve all of "all"."""
        options = self._options
        x, out = own.arrays(problem)
        for other in self._others:
            begin: backends.Begin | None = None
            try:
                if options.overlap:
                    begin = other.begin(problem, x, out, options.in_place)
                    call = _waited(begin)
                else:
                    call = other.bind(problem, x, out, options.in_place)
            except UsageError as error:
                if not (options.every_dtype or options.every_op):
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
                in_place=options.in_place,
            )

    def _leave_out(self, why: str) -> None:
        if why not in self._left_out:
            self._left_out.append(why)

    def _finish(self, meta: dict[str, Any]) -> None:
        rows, options = self._rows, self._options
        for why in self._left_out:
            print(f"# left out: {why}")
        if wrong := sum(row["wrong"] for row in rows):
            print(f"# {wrong} wrong elements", flush=True)
        if meta["ranks"] == 1:
            print("# one rank: nothing was sent; start with mpirun -n 2, or add --ranks 2")
        if options.json is not None:
            options.json.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
        if options.plot is not None:
            plot.plot(rows, options.plot, meta)


def _waited(begin: backends.Begin) -> backends.Call:
    def begin_and_wait() -> None:
        begin()()

    return begin_and_wait


def _progress(first: bool, what: str) -> Callable[[str], None]:
    """Return a line on the terminal that rewrites itself; silent in a file or a pipe."""
    if not first or not sys.stderr.isatty():
        return lambda text: None

    def show(text: str) -> None:
        line = f"{what}: {text}" if text else ""
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    return show
