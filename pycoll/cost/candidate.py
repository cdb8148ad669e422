"""Candidates: every algorithm that could run a call, and what it would take."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.algorithms import get, names
from pycoll.cost.machine import Machine
from pycoll.cost.question import Question
from pycoll.cost.tuning import Tuning
from pycoll.errors import ScheduleError, UsageError
from pycoll.schedule.collective import COLLECTIVES
from pycoll.schedule.placement import FLAT

#: That are simulated of one algorithm, for the first call of a job shall not wait for long.
MOST_STEPS = 20000


@dataclass(frozen=True)
class Candidate:
    """One algorithm; without seconds it cannot run the call, and the note says why."""

    algorithm: str
    predicted: float | None  #: seconds by the model
    measured: float | None  #: seconds by rows of `pycoll tune`
    operations: int = 0  #: of one rank, the most; fewer is simpler; 0 where it cannot run
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """What the choice goes by: what was measured, or else the model."""
        return self.predicted if self.measured is None else self.measured


def candidates(
    question: Question,
    tuning: Tuning | None,
    *,
    full: bool = False,
    machine: Machine | None = None,
) -> list[Candidate]:
    """Return all algorithms of the question's collective.

    Args:
        question: The call.
        tuning: What was measured, if anything was.
        full: Ask the model even where a measurement makes it needless.
        machine: Where it runs, if that is not this job's machine.

    Raises:
        UsageError: There is no such collective.
    """
    collective = "allreduce" if question.collective == "barrier" else question.collective
    if collective not in COLLECTIVES:
        raise UsageError(
            f"collective is {question.collective!r}, want 'barrier' or one of "
            f"{', '.join(COLLECTIVES)}"
        )
    if machine is None:
        machine = Machine.of(question, tuning.rates if tuning else None)
    rows = tuning if tuning is not None and tuning.fits(question) else None
    if machine.topology is not None:
        rows = None
    return [
        _candidate(name, collective, question, machine, rows, full) for name in names(collective)
    ]


def _candidate(
    name: str,
    collective: str,
    question: Question,
    machine: Machine,
    rows: Tuning | None,
    full: bool,
) -> Candidate:
    measured = rows.measured(collective, name, question.nbytes) if rows else None
    if measured is not None and not full:
        return Candidate(name, None, measured)
    # Loaded here: where rows answer, the model is not needed at all.
    from pycoll.cost.prediction import predict
    from pycoll.cost.work import TooLarge, work_of

    placement = FLAT if question.placement is None else question.placement
    algorithm = get(name, collective)
    try:
        work = work_of(algorithm, question.size, placement, machine.hosts, MOST_STEPS)
        if work.asked_placement and (placement.flat or question.collective == "barrier"):
            return Candidate(name, None, None, note="is for ranks on several levels")
        predicted = predict(
            algorithm, question.nbytes, machine, placement=placement, most=MOST_STEPS
        )
        near = rows.nearest(collective, name, question.nbytes) if rows else None
        note = ""
        if near is not None and measured is None:
            # Beyond the rows the model says how it goes on from the last one.
            at_row = predict(algorithm, near[0], machine, placement=placement, most=MOST_STEPS)
            measured = near[1] * predicted / at_row
            note = f"from {near[0]} bytes on by the model"
    except TooLarge as error:
        return Candidate(name, None, None, error.steps, str(error))
    except ScheduleError as error:
        return Candidate(name, None, None, note=str(error))
    return Candidate(name, predicted, measured, work.operations_per_rank, note)
