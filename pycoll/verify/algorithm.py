"""Verify: prove an algorithm, its ranks one by one or a few for all, and say what was looked at."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from pycoll import collector
from pycoll.algorithms import Algorithm, get
from pycoll.errors import UsageError, quoted
from pycoll.program.lower import compile_own
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Placement
from pycoll.schedule.trace import forget
from pycoll.verify.certificates import Form
from pycoll.verify.gate import LIMIT, TooLargeError, prove
from pycoll.verify.record import Record
from pycoll.verify.verdict import Verdict

_MOST = 1 << 20  #: ranks, and slots of an edge
#: Instructions of the ranks that are compared with those that were proved for all: some seconds.
_COMPARED = 1 << 19


def verify(
    algorithm: Algorithm | str,
    size: int,
    *,
    slots: int = SLOTS,
    direct: bool = False,
    average: bool = False,
    collective: str | None = None,
    placement: Placement | None = None,
    whole: bool = False,
) -> Verdict:
    """Prove an algorithm at ``size`` ranks, or raise what is wrong.

    Up to 32 ranks, and of zero-copy forms, the schedule is checked, whose errors are nearer to the
    source: every send has its receive. Then the Programs that it lowers to are proved, see
    ``verify_programs``. From 33 ranks on a few are proved for all where all do the same up to a
    rotation or an exclusive or of their numbers, and all are compared with those, or as many as
    takes seconds; whoever runs it compares its own. Others are proved one by one.

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
        whole: Prove all ranks one by one, however many they are and however long it takes.

    Returns:
        The Verdict: what was proved, and how long it took.

    Raises:
        UsageError: There is no such algorithm, or an argument is none of these.
        ScheduleError: The algorithm is not correct. PostconditionError: a value is missing, counted
            twice, or not what was promised. RaceError: two accesses to one place are not ordered.
            DeadlockError: a rank waits for ever. TooLargeError: the ranks do not all do the same,
            and are too many to be proved one by one in a minute; see ``whole``.

    Example:
        >>> bool(pycoll.verify("ring", size=3))
        True
    """
    began = time.perf_counter()
    _check(size, slots, placement, direct=direct, average=average, whole=whole)
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
    form = Form(direct, average)
    with collector.paused():
        try:
            verdict = _verdict(algorithm, size, slots, form, placement, whole)
        finally:
            forget()
    return replace(verdict, name=algorithm.name, seconds=time.perf_counter() - began)


def _verdict(
    algorithm: Algorithm,
    size: int,
    slots: int,
    form: Form,
    placement: Placement | None,
    whole: bool,
) -> Verdict:
    limit = sys.maxsize if whole else LIMIT
    try:
        record = prove(algorithm, size, slots, form, placement, limit=limit, whole=whole)
        if record.group is None:
            return record.verdict
        compared, other = _compare(algorithm, record, placement)
        if other is None:
            return replace(record.verdict, compared=compared)
        return prove(algorithm, size, slots, form, placement, whole=True).verdict
    except TooLargeError:
        raise TooLargeError(
            f"{algorithm.name} at {size} ranks: its ranks do not all do the same, and they move "
            f"more than {LIMIT} chunks, which takes long to prove one by one; verify fewer ranks, "
            "or pass whole=True (--whole) and wait"
        ) from None


def _compare(
    algorithm: Algorithm, record: Record, placement: Placement | None
) -> tuple[int, int | None]:
    """Return how many ranks were held against those that were proved, and one that differs.

    Those are all ranks, or some all over the range.
    """
    size, step = record.verdict.size, record.group.step if record.group else 1
    each = max(1, record.verdict.instructions // size)
    count = max(2, min(size, _COMPARED // each))
    apart = -(-size // count) | 1  # odd: it meets every seat of a host
    ranks = sorted({*range(0, size, apart), size - 1}) if count < size else range(size)

    def lower(rank: int) -> Program:
        return compile_own(algorithm, size, rank, record.facts, placement=placement)

    representatives = {rank: lower(rank) for rank in range(step)} if record.cut else {}
    for rank in ranks:
        if not record.admits(lower(rank), algorithm.collective, representatives.__getitem__):
            return len(ranks), rank
        forget()
    return len(ranks), None


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
