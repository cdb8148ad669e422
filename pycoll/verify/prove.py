"""The proof: all ranks' Programs do what the collective promises, whatever the interleaving.

Each Program's loop is unrolled to a few tiles, which decide for any number of them: see `unrolled`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pycoll.algorithms import Algorithm, get
from pycoll.errors import UsageError, counted, quoted
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Collective, Placement
from pycoll.verify.network import build
from pycoll.verify.unrolled import run_all
from pycoll.verify.values import Values


def _check(size: int, slots: int, placement: Placement | None, **flags: bool) -> None:
    for name, value in (("size", size), ("slots", slots)):
        if not isinstance(value, int) or not 1 <= value <= _MOST:
            raise UsageError(
                f"verify: {name} is {quoted(value)}, want an integer from 1 to {_MOST}"
            )
    if not (placement is None or isinstance(placement, Placement)):
        raise UsageError(f"verify: placement is {quoted(placement)}, want a Placement or None")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise UsageError(f"verify: {name} is {quoted(flag)}, want True or False")


_MOST = 1 << 20  #: ranks, and slots of an edge


@dataclass(frozen=True)
class Verdict:
    """What was proved, and how."""

    name: str  #: of the algorithm; of the collective where Programs were given
    size: int
    slots: int  #: per edge; it holds with more, too
    tiles: tuple[int, ...]  #: the unrollings that were run
    instructions: int  #: of all ranks' Programs
    seconds: float
    origin: str = "proof"  #: or "certificate", "cache", "unproved"

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        """Say it in a sentence."""
        ranks = counted(self.size, "rank")
        if self.origin != "proof":
            return f"{self.name} at {ranks}: {self.origin}"
        return (
            f"{self.name} is correct at {ranks}: {self.instructions} instructions, proved in "
            f"{self.seconds:.3g} s"
        )

    def __repr__(self) -> str:
        return f"<pycoll.Verdict {self}>"


def verify_programs(
    programs: Sequence[Program],
    collective: Collective,
    *,
    slots: int = SLOTS,
    average: bool = False,
) -> Verdict:
    """Prove the Programs of all ranks, or raise what is wrong with them.

    Raises:
        PostconditionError: A value is missing, counted twice, or not what was promised.
        RaceError: Two accesses to one place are not ordered.
        DeadlockError: A rank waits for ever.
        ScheduleError: The Programs do not fit the machine or each other.
    """
    if slots < 1:
        raise UsageError(f"slots is {slots}, want at least 1")
    began = time.perf_counter()
    if average and not collective.reduces:
        raise UsageError(f"{collective.name} folds nothing, so it has no average")
    network = build(programs, collective)
    values = Values(collective, network.size, network.nchunks)
    unrollings = run_all(network, values, slots, average)
    return Verdict(
        name=collective.name,
        size=network.size,
        slots=slots,
        tiles=unrollings,
        instructions=sum(len(p.instructions) for p in programs),
        seconds=time.perf_counter() - began,
    )


def verify(
    algorithm: Algorithm | str,
    size: int,
    *,
    slots: int = SLOTS,
    direct: bool = False,
    average: bool = False,
    collective: str | None = None,
    placement: Placement | None = None,
) -> Verdict:
    """Prove an algorithm at ``size`` ranks, or raise what is wrong.

    First the schedule is checked, whose errors are nearer to the source: every send has its
    receive. Then the Programs that it lowers to are proved, see ``verify_programs``.

    Args:
        algorithm: An algorithm, or the name of a built-in.
        size: Number of ranks.
        slots: Of every edge, as many as the engine has by default; what holds with so many holds
            with more.
        direct: Prove the zero-copy form.
        average: Prove the Programs that divide by the size.
        collective: Which built-in is meant, where several have the name; "allreduce" by default.
        placement: Which ranks lie close together. The proof of an algorithm that asks for it is
            of this placement only.

    Returns:
        The Verdict: what was proved, and how long it took.

    Raises:
        UsageError: There is no such algorithm, or an argument is none of these.
        ScheduleError: The algorithm is not correct. PostconditionError: a value is missing, counted
            twice, or not what was promised. RaceError: two accesses to one place are not ordered.
            DeadlockError: a rank waits for ever.

    Example:
        >>> bool(pycoll.verify("ring", size=3))
        True
    """
    began = time.perf_counter()
    _check(size, slots, placement, direct=direct, average=average)
    if not (collective is None or isinstance(collective, str)):
        raise UsageError(f"verify: collective is {quoted(collective)}, want a name")
    if not isinstance(algorithm, str | Algorithm):
        raise UsageError(
            f"verify: algorithm is {quoted(algorithm)}, want the name of a built-in or a function "
            'under @pycoll.algorithm("allreduce")'
        )
    if isinstance(algorithm, str):
        algorithm = get(algorithm, "allreduce" if collective is None else collective)
    elif collective not in (None, algorithm.collective.name):
        raise UsageError(
            f"collective is {collective!r}, but {algorithm.name} is an algorithm for "
            f"{algorithm.collective.name}"
        )
    programs = compile_all(algorithm, size, direct=direct, average=average, placement=placement)
    verdict = verify_programs(programs, algorithm.collective, slots=slots, average=average)
    return replace(verdict, name=algorithm.name, seconds=time.perf_counter() - began)
