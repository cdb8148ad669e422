"""Explain: which algorithm a call runs, which it could have run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycoll import collector
from pycoll.algorithms import get
from pycoll.cost.candidate import Candidate, candidates
from pycoll.cost.machine import Machine
from pycoll.cost.question import Choice, Question, Switch
from pycoll.cost.select import Selector, best_of, choice_of, choose
from pycoll.cost.tuning import Tuning
from pycoll.errors import UsageError, counted
from pycoll.order import FIXED, FREE
from pycoll.schedule import COLLECTIVES, NotDirect
from pycoll.topology.text import reach

if TYPE_CHECKING:
    from pycoll.cost.traffic import Load

UNITS = (("GiB", 30), ("MiB", 20), ("KiB", 10))


@dataclass(frozen=True)
class Explanation:
    """The choice for one call; ``str()`` is a table."""

    question: Question
    choice: Choice
    candidates: tuple[Candidate, ...]  #: the fastest first, those that cannot run last
    why: str  #: one sentence, or two
    where: tuple[str, ...] = ()  #: how ranks of a described cluster reach each other
    described: bool = False  #: it is for a described cluster, whose links are known
    free: Explanation | None = None  #: of a call in the fixed order, the same without it

    def __repr__(self) -> str:
        q = self.question
        what = f"{q.collective}, {size_text(q.nbytes)}, {counted(q.size, 'rank')}"
        return f"<pycoll.Explanation {what}: {self.choice.algorithm}; print it for all>"

    def __str__(self) -> str:
        q = self.question
        head = f"{q.collective}, {size_text(q.nbytes)}, {counted(q.size, 'rank')}"
        width = max(len(c.algorithm) for c in self.candidates)
        lines = [f"{head}: {self.choice.algorithm}", self.why, *self.where]
        lines.append(f"  {'algorithm':<{width}} {'by tune':>12} {'predicted':>12}")
        for c in self.candidates:
            mark = "*" if c.algorithm == self.choice.algorithm else " "
            row = f"{mark} {c.algorithm:<{width}} {_us(c.measured):>12} {_us(c.predicted):>12}"
            parts = [c.note, c.how, self._busiest(c)]
            note = "; ".join(part for part in parts if part)
            lines.append(f"{row}  {note}".rstrip())
        if self.free is not None:
            lines.append(self._price(self.free))
        if self.choice.direct is not None:
            lines.append(f"where all arrays are from empty(): {self.choice.direct}, without copies")
        return "\n".join(lines)

    @property
    def seconds(self) -> float | None:
        """What the algorithm that was chosen takes, by what the choice goes by; None: not known."""
        name = self.choice.algorithm
        return next((c.seconds for c in self.candidates if c.algorithm == name), None)

    def _price(self, free: Explanation) -> str:
        """Say what the fixed order costs."""
        mine, theirs = self.seconds, free.seconds
        text = f"in any order: {free.choice.algorithm}, {_us(theirs)}"
        if mine is None or not theirs:
            return text
        ratio = mine / theirs
        much = f"takes {ratio:.3g} times that" if ratio >= 1.005 else "costs nothing"
        return f"{text}; the fixed order {much}"

    def _busiest(self, candidate: Candidate) -> str:
        """Return which link of a described cluster has most to do."""
        if not self.described or candidate.predicted is None:
            return ""
        load = candidate.busiest
        return f"busiest is {_load(load)}" if load else "its busiest link is not known"


def explain(
    question: Question,
    tuning: Tuning | None = None,
    selector: Selector | None = None,
    machine: Machine | None = None,
) -> Explanation:
    """Return what `choose` chooses, and why.

    Args:
        question: The call.
        tuning: What was measured, if anything was.
        selector: The user's own choice, if there is one.
        machine: Where the call would run, if that is not the job's own machine.

    Returns:
        The Explanation, with all candidates.

    Raises:
        UsageError: There is no such collective or algorithm, or none for so many ranks; or it folds
            nothing, and the question asks for the fixed order.

    Example:
        >>> cost.explain(cost.Question("allreduce", nbytes=8, size=4, cores=4)).choice.algorithm
        'one_shot'
    """
    free = None
    if question.order == FIXED:
        if not folds(question.collective):
            raise UsageError(f"explain: order is 'fixed', but {question.collective} folds nothing")
        free = explain(question._replace(order=FREE), tuning, selector, machine)
    with collector.paused():
        found = candidates(question, tuning, full=True, machine=machine)
    best = best_of(found, question, tuning, machine)
    tuned = best is not None and best.measured is not None
    ranked = sorted(
        found, key=lambda c: (c.seconds is None, tuned and c.measured is None, c.seconds)
    )
    if question.wanted is not None:
        get(
            question.wanted,
            "allreduce" if question.collective == "barrier" else question.collective,
        )
    own = selector(question) if selector is not None else None
    if own is not None or question.wanted is not None or best is None:
        chosen = choose(question, tuning, selector, machine)
        if chosen.direct is not None and not _is_direct(chosen.direct, question):
            chosen = chosen._replace(direct=None)
        who = "The selector chose" if own is not None else "The call asks for"
        why = f"{who} {chosen.algorithm}: {chosen.reason}."
    else:
        chosen = choice_of(question, best)
        why = _why(question, best, ranked)
    topology = None if machine is None else machine.topology
    where: list[str] = []
    if machine is not None and topology is not None:
        where = reach(topology, machine.flows)
    if question.switch is not Switch.NONE:
        where += _switched(question)
    if question.device != "cpu":
        where.append(
            "Costs are counted from the kernels' source, by published rates of GPUs joined by "
            "NVLink, not measured here."
        )
    described = topology is not None and question.size > 1
    return Explanation(question, chosen, tuple(ranked), why, tuple(where), described, free)


def folds(collective: str) -> bool:
    """Tell whether the order in which contributions are folded means something."""
    return collective in COLLECTIVES and COLLECTIVES[collective].reduces


def _switched(question: Question) -> list[str]:
    """Say what a switch's part in direct forms comes to."""
    from pycoll.cost.switch import served  # few have one

    return [
        f"Where all arrays are from empty() NVLink SHARP {question.switch.value}: {form.algorithm} "
        f"is predicted to take {_us(form.seconds)}, as its busiest link carries "
        f"{form.crossing.text(question.nbytes)}."
        for form in served(question)
    ]


def _is_direct(name: str, question: Question) -> bool:
    """Tell whether an algorithm that somebody named has a direct form among so many ranks."""
    from pycoll.program.lower import compile_program  # slow to load, and rarely needed

    algorithm = get(name, question.collective)
    try:
        compile_program(algorithm, question.size, 0, direct=True, placement=question.placement)
    except NotDirect:
        return False
    return True


def _why(question: Question, best: Candidate, ranked: list[Candidate]) -> str:
    assert best.seconds is not None
    verb = best.basis.value.capitalize()
    text = f"{verb} {_us(best.seconds)} at {size_text(question.nbytes)}"
    others = [c for c in ranked if c is not best and c.seconds is not None]
    if best.measured is not None:
        others = [c for c in others if c.measured is not None]
    if not others:
        return f"{text}; there is no other to compare with."
    second = others[0]
    assert second.seconds is not None
    ratio = second.seconds / best.seconds
    if ratio >= 1.005:
        text = f"{text}, {ratio:.3g} times faster than {second.algorithm}."
        if best.busiest and second.busiest:
            loads = f"{_load(best.busiest)}; {second.algorithm}'s {_load(second.busiest)}"
            text += f" Its busiest link is {loads}."
        return text
    if best.measured is not None and ratio < 1:
        return (
            f"{text}; {second.algorithm}, {second.basis.value}, is no faster for certain, and the "
            f"fitted model finds {best.algorithm} faster."
        )
    if best.measured is not None:
        return f"{text}, about as fast as {second.algorithm}."
    return f"{text}, simpler than {second.algorithm}, which the model finds no faster for certain."


def _load(load: Load) -> str:
    unit, shift = next((u for u in UNITS if load.nbytes >= 1 << u[1]), ("B", 0))
    size = f"{load.nbytes / (1 << shift):.4g} {unit}"
    size = f"about {size}" if load.about else size
    return f"{load.link.a} to {load.link.b}: {size} in {_us(load.seconds)}"


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.{2 if seconds < 1e-5 else 1}f} us"


def size_text(nbytes: int) -> str:
    """Return a size in the largest unit that divides it."""
    for unit, shift in UNITS:
        if nbytes >= 1 << shift and not nbytes % (1 << shift):
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"
