"""Verify: prove an algorithm, its ranks one by one or a few for all, and say what was looked at."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import lru_cache

from pycoll import collector
from pycoll.algorithms import Algorithm, get
from pycoll.errors import UsageError, quoted
from pycoll.order import FIXED, FREE, OrderName, require_order
from pycoll.program.lower import compile_own
from pycoll.program.program import Program
from pycoll.program.slots import SLOTS
from pycoll.schedule import Placement
from pycoll.schedule.trace import forget
from pycoll.verify.certificates import Form
from pycoll.verify.fixed_order import require_fixed
from pycoll.verify.gate import LIMIT, TooLargeError, chunks_moved, prove
from pycoll.verify.record import Record
from pycoll.verify.verdict import Progress, Verdict, silent

#: Instructions of all ranks up to which each is compared, half a minute; and of those that are
#: where there are more.
ALL, SOME = 1 << 21, 1 << 18
_MOST = 1 << 20  #: ranks, and slots of an edge


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
    order: OrderName = FREE,
) -> Verdict:
    """Prove an algorithm at ``size`` ranks, or raise what is wrong.

    Up to 32 ranks, and of zero-copy forms, the schedule is checked, whose errors are nearer to the
    source: every send has its receive. Then the Programs that it lowers to are proved, see
    ``verify_programs``. From 33 ranks on a few are proved for all where all do the same up to a
    rotation or an exclusive or of their numbers, and all are compared with those, or some where
    that would take minutes; whoever runs it compares its own. Others are proved one by one.

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
        order: "fixed": prove as well that it folds in the order of the ranks, so that its results
            have the bits of all others that do.

    Returns:
        The Verdict: what was proved, and how long it took.

    Raises:
        UsageError: There is no such algorithm, or an argument is none of these.
        ScheduleError: The algorithm is not correct. PostconditionError: a value is missing, counted
            twice, not what was promised, or not in the fixed order. RaceError: two accesses to one
            place are not ordered. DeadlockError: a rank waits for ever. TooLargeError: the ranks do
            not all do the same, and are too many to be proved one by one in a minute; see
            ``whole``.

    Example:
        >>> bool(pycoll.verify("ring", size=3))
        True
    """
    for name, flag in (("direct", direct), ("average", average), ("whole", whole)):
        if not isinstance(flag, bool):
            raise UsageError(f"verify: {name} is {quoted(flag)}, want True or False")
    made = _algorithm(algorithm, collective)
    if average and not made.collective.reduces:
        raise UsageError(f"{made.collective.name} folds nothing, so it has no average")
    fixed = require_order("verify", order) == FIXED
    if fixed and not made.collective.reduces:
        raise UsageError(f"verify: order is 'fixed', but {made.collective.name} folds nothing")
    return proved(made, size, slots, Form(direct, average), placement, whole, fixed=fixed)


def proved(
    algorithm: Algorithm,
    size: int,
    slots: int,
    form: Form,
    placement: Placement | None,
    whole: bool = False,
    progress: Progress = silent,
    *,
    fixed: bool = False,
) -> Verdict:
    """Do what `verify` does, and tell ``progress`` at which stage it is."""
    _check(size, slots, placement)
    began = time.perf_counter()
    try:
        with collector.paused():
            verdict = _verdict(algorithm, size, slots, form, placement, whole, progress)
            if fixed:
                progress("comparing with the fixed order")
                require_fixed(algorithm, size, placement, form, whole=whole)
    finally:
        forget()  # of thousands of ranks a few fill the memory
    order = FIXED if fixed else FREE
    return replace(verdict, seconds=time.perf_counter() - began, order=order)


def _verdict(
    algorithm: Algorithm,
    size: int,
    slots: int,
    form: Form,
    placement: Placement | None,
    whole: bool,
    progress: Progress,
) -> Verdict:
    if not whole:
        try:
            record = prove(algorithm, size, slots, form, placement, limit=LIMIT, progress=progress)
        except TooLargeError as error:
            raise TooLargeError(f"{error}; {_WHOLE}") from None
        if record.group is None:
            return record.verdict
        count = _how_many(algorithm, record, placement)
        other = _differing(algorithm, record, placement, count, progress)
        if other is None:
            return replace(record.verdict, compared=max(count, record.verdict.compared))
        if chunks_moved(algorithm, size, placement) > LIMIT:
            raise TooLargeError(
                f"{algorithm.name} at {size} ranks takes too long to prove on the spot: rank "
                f"{other} is not like the others, and they move more than {LIMIT} chunks; {_WHOLE}"
            )
    progress("proving rank by rank")
    return prove(algorithm, size, slots, form, placement, limit=math.inf, whole=True).verdict


_WHOLE = "whole=True (--whole) proves them one by one, however long that takes"


def _how_many(algorithm: Algorithm, record: Record, placement: Placement | None) -> int:
    """Return how many ranks to compare: all, or as many as take a few seconds."""
    size, cost = record.verdict.size, record.verdict.instructions
    if record.cut:  # each is run, chunk by chunk
        cost = max(cost, chunks_moved(algorithm, size, placement))
    return size if cost <= ALL else min(size, SOME * size // cost)


def _differing(
    algorithm: Algorithm,
    record: Record,
    placement: Placement | None,
    count: int,
    progress: Progress,
) -> int | None:
    """Return the first of ``count`` ranks that is not like its representative; None if none is."""
    group, size = record.group, record.verdict.size
    assert group is not None

    def lower(rank: int) -> Program:
        return compile_own(algorithm, size, rank, record.facts, placement=placement)

    representative = lru_cache(maxsize=group.step)(lower)
    for k in range(count):
        # Of many ranks some blocks, one after the other each class.
        rank = k if count == size else k * group.order // count * group.step + k % group.step
        progress(f"comparing rank {rank} ({k + 1} of {count})")
        if not record.admits(lower(rank), algorithm.collective, representative):
            return rank
        if count < size:
            forget()
    return None


def _algorithm(algorithm: Algorithm | str, collective: str | None) -> Algorithm:
    if not (collective is None or isinstance(collective, str)):
        raise UsageError(f"verify: collective is {quoted(collective)}, want a name")
    if not isinstance(algorithm, str | Algorithm):
        raise UsageError(
            f"verify: algorithm is {quoted(algorithm)}, want the name of a built-in or a function "
            'under @pycoll.algorithm("allreduce")'
        )
    if isinstance(algorithm, str):
        return get(algorithm, "allreduce" if collective is None else collective)
    if collective not in (None, algorithm.collective.name):
        raise UsageError(
            f"collective is {collective!r}, but {algorithm.name} is an algorithm for "
            f"{algorithm.collective.name}"
        )
    return algorithm


def _check(size: int, slots: int, placement: Placement | None) -> None:
    for name, value in (("size", size), ("slots", slots)):
        if not isinstance(value, int) or not 1 <= value <= _MOST:
            raise UsageError(
                f"verify: {name} is {quoted(value)}, want an integer from 1 to {_MOST}"
            )
    if not (placement is None or isinstance(placement, Placement)):
        raise UsageError(f"verify: placement is {quoted(placement)}, want a Placement or None")
    for level in placement.levels if placement is not None else ():
        if len(level.groups) != size:
            raise UsageError(
                f"verify: size is {size}, but level {level.name!r} of the placement has "
                f"{len(level.groups)} ranks"
            )
