"""Candidates: every algorithm that could run a call, and what it would take."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycoll.algorithms import FOR_FIXED_ORDER, get, names
from pycoll.cost.machine import Machine
from pycoll.cost.question import Question
from pycoll.cost.tuning import Tuning
from pycoll.errors import ScheduleError, UsageError, quoted
from pycoll.order import FIXED, FREE
from pycoll.schedule.collective import COLLECTIVES
from pycoll.schedule.placement import FLAT

if TYPE_CHECKING:
    from pycoll.cost.traffic import Load

#: Times the best so far, behind which an algorithm is not simulated to its end: a choice tells
#: apart what differs by less than that.
FAR = 1.5


class Basis(enum.Enum):
    """What the seconds of a candidate come from; its value is the word for it."""

    MEASURED = "measured"  #: at this size
    INTERPOLATED = "interpolated"  #: between two sizes that were measured
    EXTRAPOLATED = "extrapolated"  #: by the model, from the nearest size that was measured
    PREDICTED = "predicted"  #: by the model alone


@dataclass(frozen=True)
class Candidate:
    """One algorithm; without seconds it cannot run the call, and the note says why."""

    algorithm: str
    predicted: float | None  #: seconds by the model
    measured: float | None  #: seconds by rows of `pycoll tune`; see `basis`
    operations: int = 0  #: of one rank, the most; fewer is simpler; 0 where it cannot run
    note: str = ""
    busiest: Load | None = None  #: of the links of a described cluster, where that was asked for
    basis: Basis = Basis.PREDICTED  #: what `seconds` comes from
    how: str = ""  #: by how much of a simulation the model predicts; "" where it was not asked

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
        full: Ask the model even where a measurement makes it needless, and of all to the end;
            else what is far behind the best may be said to take for ever.
        machine: Where it runs, if that is not this job's machine.

    Raises:
        UsageError: There is no such collective.
    """
    collective = "allreduce" if question.collective == "barrier" else question.collective
    if collective not in COLLECTIVES:
        raise UsageError(
            f"collective is {quoted(question.collective)}, want 'barrier' or one of "
            f"{', '.join(COLLECTIVES)}"
        )
    if machine is None:
        machine = Machine.of(question, tuning.rates if tuning else None)
    rows = tuning if tuning is not None and tuning.fits(question) else None
    if machine.topology is not None:
        rows = None
    known = names(collective)
    if full or rows is not None:
        return [_candidate(name, collective, question, machine, rows, full) for name in known]
    return _fastest(known, collective, question, machine)


def with_prediction(
    one: Candidate, question: Question, tuning: Tuning | None, machine: Machine | None = None
) -> Candidate:
    """Return a candidate of `candidates`, with the model's word on it."""
    if one.predicted is not None:
        return one
    collective = "allreduce" if question.collective == "barrier" else question.collective
    if machine is None:
        machine = Machine.of(question, tuning.rates if tuning else None)
    return _candidate(one.algorithm, collective, question, machine, tuning, True)


def _fastest(
    known: Sequence[str], collective: str, question: Question, machine: Machine
) -> list[Candidate]:
    """Return the candidates by the model, which spends little on those that are far behind."""
    from pycoll.cost.offer import refused
    from pycoll.cost.prediction import least

    placement = FLAT if question.placement is None else question.placement
    bounds = dict.fromkeys(known, 0.0)
    for name in known:
        try:
            algorithm = get(name, collective)
            if not refused(algorithm, machine, placement, question.unproved):
                bounds[name] = least(algorithm, question.nbytes, machine, placement)
        except Exception:
            pass  # the candidate says what is wrong
    found: dict[str, Candidate] = {}
    best = math.inf
    for name in sorted(known, key=bounds.__getitem__):
        if bounds[name] > FAR * best:
            found[name] = Candidate(name, math.inf, None, note="is far behind")
            continue
        one = _candidate(name, collective, question, machine, None, False, FAR * best)
        found[name] = one
        best = min(best, math.inf if one.predicted is None else one.predicted)
    return [found[name] for name in known]


def _candidate(
    name: str,
    collective: str,
    question: Question,
    machine: Machine,
    rows: Tuning | None,
    full: bool,
    limit: float = math.inf,
) -> Candidate:
    if name in question.without:
        return Candidate(name, None, None, note="takes too long to prove")
    if question.order == FREE and name in FOR_FIXED_ORDER:
        return Candidate(name, None, None, note="is for the fixed order")
    if question.order == FIXED and (why := _disordered(name, collective, question)):
        return Candidate(name, None, None, note=why)
    measured = rows.measured(collective, name, question.nbytes) if rows else None
    basis = Basis.PREDICTED
    if rows is not None and measured is not None:
        exact = rows.has(collective, name, question.nbytes)
        basis = Basis.MEASURED if exact else Basis.INTERPOLATED
    if measured is not None and not full:
        return Candidate(name, None, measured, basis=basis)
    # Loaded here: where rows answer, the model is not needed at all.
    from pycoll.cost.offer import refused
    from pycoll.cost.prediction import estimate, outlined

    placement = FLAT if question.placement is None else question.placement
    flat = placement.flat or question.collective == "barrier"
    unfit = Candidate(name, None, None, note="is for ranks on several levels")
    algorithm = get(name, collective)
    try:
        asked_placement, operations = outlined(algorithm, machine, placement)
        if asked_placement and flat:
            return unfit
        if reason := refused(algorithm, machine, placement, question.unproved):
            return Candidate(name, None, None, note=reason)
        found = estimate(algorithm, question.nbytes, machine, placement=placement, limit=limit)
        predicted = found.seconds
        near = rows.nearest(collective, name, question.nbytes) if rows else None
        note = "interpolated" if basis is Basis.INTERPOLATED else ""
        if near is not None and measured is None:
            # Beyond the rows the model says how it goes on from the last one.
            at_row = estimate(algorithm, near[0], machine, placement=placement)
            measured = near[1] * predicted / at_row.seconds
            basis = Basis.EXTRAPOLATED
            note = f"extrapolated from {near[0]} bytes"
    except ScheduleError as error:
        return Candidate(name, None, None, note=str(error))
    except Exception as error:  # of a plug-in, which must not take the others with it
        return Candidate(name, None, None, note=f"{type(error).__name__}: {error}")
    load = None
    if full and machine.topology is not None:
        from pycoll.cost.traffic import busiest_of

        load = busiest_of(algorithm, question.nbytes, machine, placement)
    return Candidate(name, predicted, measured, operations, note, load, basis, found.how)


def _disordered(name: str, collective: str, question: Question) -> str:
    """Say why an algorithm does not serve a call in the fixed order; "" if it does."""
    from pycoll.verify.fixed_order import differs  # the prover is slow to load

    placement = FLAT if question.placement is None else question.placement
    try:
        text = differs(get(name, collective), question.size, placement)
    except ScheduleError as error:
        return str(error)
    except Exception as error:  # of a plug-in
        return f"{type(error).__name__}: {error}"
    return text and f"is not in the fixed order: {text}"
