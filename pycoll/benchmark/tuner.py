"""Tuner: times the algorithms of a job's collectives, and fits the model to what it measured."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pycoll.algorithms import get, names
from pycoll.benchmark import oob
from pycoll.benchmark.calibration import BLOCK_SECONDS, Calibration, Cell, Timed
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.timing import back_to_back, line_up
from pycoll.cost import Machine, Question, Tuning, predict
from pycoll.cost.candidate import candidates
from pycoll.cost.fit import Row, fit
from pycoll.cost.offer import refused
from pycoll.cost.prediction import likeness
from pycoll.cost.select import plainness
from pycoll.errors import ScheduleError
from pycoll.schedule import COLLECTIVES
from pycoll.schedule.placement import FLAT

ITEMSIZE = 4  #: measured with float32
SIZES = (8, 64, *(1 << shift for shift in range(8, 31, 2)))  #: wanted bytes of messages
#: Of the host's memory, what all ranks' arrays may take.
MEMORY_SHARE = 1 / 16
FIT_SECONDS = 1.5  #: for the model, of rank 0 alone


class Found(NamedTuple):
    """What a calibration measured."""

    medians: dict[Cell, float]  #: seconds
    samples: dict[Cell, list[float]]
    sizes: dict[str, list[int]]  #: bytes that were to be measured, of each collective


METHOD = (
    "blocks of back-to-back calls on numpy arrays of float32, out of place; a block's time is the "
    "slowest rank's; algorithms of one collective and size alternate; median over the sweeps"
)


class Tuner:
    """Times the calls of one communicator."""

    def __init__(self, comm: Any, facts: Question, budget: float) -> None:
        self.comm = comm
        self.facts = facts
        self._started = time.perf_counter()
        self._budget = budget
        self._gather = oob.gather(comm)
        self._plans: dict[Cell, Callable[[], object]] = {}
        self._pool: tuple[Any, Any] = (np.ones(0, np.float32), np.ones(0, np.float32))

    def calibrate(
        self, collectives: Sequence[str], largest: int, wanted: Sequence[int] = SIZES
    ) -> Found:
        """Measure within the budget."""
        sizes = {name: self.sizes(name, wanted, largest) for name in collectives}
        algorithms = {name: names(name) for name in collectives}
        guesses = self.guesses(algorithms, sizes)
        turns = Machine.of(self.facts).turns
        rooted = frozenset(name for name in collectives if COLLECTIVES[name].rooted)
        calibration = Calibration(
            algorithms,
            sizes,
            guesses.get,
            self.timed,
            self._budget,
            rooted=rooted,
            block_seconds=BLOCK_SECONDS * turns,
        )
        return Found(calibration.run(), calibration.samples, sizes)

    def sizes(self, collective: str, wanted: Sequence[int], largest: int) -> list[int]:
        """Return the sizes that can be measured: whole elements and blocks, within memory."""
        unit = ITEMSIZE * (self.comm.size if OPERATIONS[collective].blocks else 1)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = min(largest, int(memory * MEMORY_SHARE / self.comm.local_size / 2))
        whole = {max(unit, n // unit * unit) for n in wanted if n <= limit}
        return sorted(whole)

    def guesses(
        self, algorithms: Mapping[str, Sequence[str]], sizes: Mapping[str, Sequence[int]]
    ) -> dict[Cell, float]:
        """Return the model's seconds of every cell worth measuring; rank 0's for all."""
        groups = [(name, n) for name in algorithms for n in sizes[name]]
        cells = [Cell(name, n, algorithm) for name, n in groups for algorithm in algorithms[name]]
        table = np.zeros(len(cells))
        if self.comm.rank == 0:
            found: dict[Cell, float | None] = {}
            keep = {name: distinct(name, self.facts) for name in algorithms}
            for name, n in groups:
                question = self.facts._replace(collective=name, nbytes=n)
                for candidate in candidates(question, None):
                    if candidate.algorithm in keep[name]:
                        found[Cell(name, n, candidate.algorithm)] = candidate.predicted
            table[:] = [found.get(cell) or 0.0 for cell in cells]
        self.comm.allreduce(table)
        return {cell: float(t) for cell, t in zip(cells, table, strict=True) if t > 0}

    def timed(self, cell: Cell, calls: int) -> Timed:
        """Run calls of a cell one behind the other; all ranks return the same."""
        plan = self._plans.get(cell)
        if plan is None:
            plan = self._plans[cell] = self.plan(cell)
        self._gather(0.0)
        line_up(
            partial(back_to_back, plan),
            min(calls // 8, 64),
            self._gather,
            rooted=COLLECTIVES[cell.collective].rooted,
        )
        seconds = back_to_back(plan, calls)
        ranks = self._gather(np.array([seconds, time.perf_counter() - self._started]))
        return Timed(max(float(taken) for taken, _ in ranks), float(ranks[0][1]))

    def plan(self, cell: Cell) -> Callable[[], object]:
        """Return a call of the cell."""
        operation, count = OPERATIONS[cell.collective], cell.nbytes // ITEMSIZE
        root = self.comm.rank == 0
        if count > len(self._pool[0]):
            # Written to: pages that nobody touched would all be one page.
            self._pool = (np.ones(count, np.float32), np.ones(count, np.float32))
            self._plans.clear()
        part = {"all": count, "own": count // self.comm.size, "root": count if root else 0}
        x, out = self._pool[0][: part[operation.takes]], self._pool[1][: part[operation.gives]]
        arrays: tuple[Any, ...] = (x, out)
        if cell.collective == "broadcast":
            arrays = (self._pool[0][:count],)
        elif operation.gives == "root" and not root:
            arrays = (x, None)
        elif operation.takes == "root" and not root:
            arrays = (None, out)
        call: Callable[[], object] = self.comm.plan(
            cell.collective, *arrays, algorithm=cell.algorithm
        )
        return call


def left_out(collective: str, facts: Question) -> dict[str, str]:
    """Return why algorithms are not measured that the choice does not offer, by their names."""
    machine, placement = Machine.of(facts), facts.placement or FLAT
    found = {}
    for name in names(collective):
        with contextlib.suppress(ScheduleError):  # it does not serve so many ranks at all
            algorithm = get(name, collective)
            found[name] = refused(algorithm, machine, placement, facts.unproved)
    return {name: reason for name, reason in found.items() if reason}


def distinct(collective: str, facts: Question) -> list[str]:
    """Return the algorithms that may be chosen and differ; of equals, the plainest."""
    machine, placement = Machine.of(facts), facts.placement or FLAT
    found: dict[int, str] = {}
    out = left_out(collective, facts)
    for name in sorted((n for n in names(collective) if n not in out), key=plainness):
        try:
            asked_placement, alike = likeness(get(name, collective), machine, placement)
        except ScheduleError:
            continue
        if not (asked_placement and placement.flat):
            found.setdefault(alike, name)
    return list(found.values())


def tuned(facts: Question, medians: Mapping[Cell, float]) -> Tuning:
    """Return what was measured, with the model fitted to it."""
    machine = Machine.of(facts)
    rows: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for cell, seconds in sorted(medians.items()):
        rows.setdefault((cell.collective, cell.algorithm), []).append((cell.nbytes, seconds))
    rates = fit(_sample(facts, machine, medians), machine)
    return Tuning(
        facts.size, machine.hosts, rates, {key: tuple(found) for key, found in rows.items()}
    )


def _sample(facts: Question, machine: Machine, medians: Mapping[Cell, float]) -> list[Row]:
    """Return rows to fit, as many as the model is quick enough for, spread over all."""
    placement = facts.placement or FLAT

    def row(cell: Cell, seconds: float) -> Row:
        algorithm = get(cell.algorithm, cell.collective)
        return Row(
            seconds,
            lambda rates: predict(
                algorithm, cell.nbytes, replace(machine, rates=rates), placement=placement
            ),
        )

    # Calls of a rooted collective overlap, in rows longer than the model knows.
    every = [
        row(cell, seconds)
        for cell, seconds in sorted(medians.items())
        if not COLLECTIVES[cell.collective].rooted
    ]
    if not every:
        return []
    start = time.perf_counter()
    for one in every[:: max(1, len(every) // 8)]:
        one.predict(machine.rates)
    each = (time.perf_counter() - start) / min(8, max(1, len(every)))
    evaluations = 60  # of every row, in a fit
    step = max(1, math.ceil(len(every) * each * evaluations / FIT_SECONDS))
    return every[::step]


def errors(facts: Question, tuning: Tuning, medians: Mapping[Cell, float]) -> list[float]:
    """Return the model's seconds over the measured ones, of some cells spread over all."""
    machine = Machine.of(facts, tuning.rates)
    placement = facts.placement or FLAT
    some = [(c, t) for c, t in sorted(medians.items()) if not COLLECTIVES[c.collective].rooted]
    some = some[:: max(1, len(some) // 64)]
    return [
        predict(get(c.algorithm, c.collective), c.nbytes, machine, placement=placement) / seconds
        for c, seconds in some
    ]
