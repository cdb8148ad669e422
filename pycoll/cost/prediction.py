"""Predict: the seconds of one collective by a schedule, on a machine that need not exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from pycoll.cost.extrapolation import Estimate, extrapolate
from pycoll.cost.machine import Machine
from pycoll.cost.outline import outline
from pycoll.cost.simulate import Stalled
from pycoll.cost.timing import beside, own_seconds, seconds_of, whole_ranks
from pycoll.cost.work import sample, whole_work_of, work_of
from pycoll.schedule import Algorithm, Kind, Schedule
from pycoll.schedule.placement import FLAT, Placement


def predict(
    subject: Algorithm | Schedule,
    nbytes: int,
    machine: Machine,
    *,
    placement: Placement = FLAT,
    blocks: Sequence[int] | None = None,
    limit: float = math.inf,
) -> float:
    """Return the seconds of one call.

    Args:
        subject: The algorithm, or the schedule of all ranks.
        nbytes: Bytes of the message, all blocks together.
        machine: Where it runs.
        placement: What a placement-aware algorithm sees.
        blocks: Bytes of each block, where they differ.
        limit: Seconds that are worth knowing; what takes longer may be said to take for ever.

    Returns:
        Seconds.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.

    Example:
        >>> machine = cost.Machine.described(topology.cluster(2))
        >>> cost.predict(pycoll.algorithms.get("ring"), 8, machine) > 0
        True
    """
    return estimate(
        subject, nbytes, machine, placement=placement, blocks=blocks, limit=limit
    ).seconds


def estimate(
    subject: Algorithm | Schedule,
    nbytes: int,
    machine: Machine,
    *,
    placement: Placement = FLAT,
    blocks: Sequence[int] | None = None,
    limit: float = math.inf,
) -> Estimate:
    """Return the seconds of one call as `predict` does, and how they were found."""
    lengths = None if blocks is None else tuple(blocks)
    return _estimate(subject, nbytes, machine, placement, lengths, limit)


def least(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement = FLAT
) -> float:
    """Return seconds that a call takes at least: the own work of the busiest of a few ranks."""
    if machine.kernel is not None or machine.size > whole_ranks(machine):
        found = outline(algorithm, machine.size, placement, machine.hosts)
        if not found.ranks:
            return 0.0
        return own_seconds(found, nbytes, machine)
    _, sides = sample(algorithm, machine.size, placement, machine.hosts)
    rates = machine.rates
    scale = min(1.0, rates.memory)
    copy, fold, most = rates.copy * scale * beside(machine), rates.fold * scale, 0.0
    for rank, side in sides.items():
        seconds = 0.0
        for step in side.steps:
            n = step.chunks.nchunks * nbytes / side.nchunks
            sends, folds = step.kind is Kind.SEND, step.kind is Kind.RECV_REDUCE
            # A send costs no more than its message where it joins what makes its value.
            seconds += 0.0 if sends else n * copy
            for peer in step.peers if sends else step.senders(rank):
                toll = machine.toll(rank, peer) if sends else machine.toll(peer, rank)
                each = toll.send if sends else toll.receive
                seconds += (n * fold if folds else 0.0) + each + n * toll.byte
        most = max(most, seconds)
    return most


@lru_cache(maxsize=4096)
def _estimate(
    subject: Algorithm | Schedule,
    nbytes: int,
    machine: Machine,
    placement: Placement,
    blocks: tuple[int, ...] | None,
    limit: float,
) -> Estimate:
    size = machine.size
    few = isinstance(subject, Schedule) or blocks is not None or size <= whole_ranks(machine)
    if not few:
        assert isinstance(subject, Algorithm)
        found = extrapolate(subject, nbytes, machine, placement, limit)
        if found is not None:
            return found
    if machine.topology is None and blocks is None:
        work = work_of(subject, size, placement, machine.hosts)
        how = "simulated" if work.ranks == size else f"simulated for {work.ranks} of {size} ranks"
        try:
            return Estimate(seconds_of(work, nbytes, machine, limit=limit), how)
        except Stalled:  # those few ranks looked like all, but are not
            pass
    work = whole_work_of(subject, size, placement)
    try:
        return Estimate(seconds_of(work, nbytes, machine, blocks, limit=limit), "simulated")
    except Stalled:
        return Estimate(math.inf, "it never ends")  # a deadlock; the verifier says whose


def outlined(
    algorithm: Algorithm, machine: Machine, placement: Placement = FLAT
) -> tuple[bool, int]:
    """Return whether an algorithm looks at the placement, and the steps of its busiest rank.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
    """
    if machine.size > whole_ranks(machine):
        found = outline(algorithm, machine.size, placement, machine.hosts)
        return found.asked_placement, found.steps
    work = work_of(algorithm, machine.size, placement, machine.hosts)
    return work.asked_placement, work.operations_per_rank


def likeness(
    algorithm: Algorithm, machine: Machine, placement: Placement = FLAT
) -> tuple[bool, int]:
    """Return whether an algorithm looks at the placement, and a number of what its ranks do.

    Algorithms of the same number differ in name only. Among many ranks that are not alike, each
    algorithm has its own.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
    """
    if machine.size <= whole_ranks(machine):
        work = work_of(algorithm, machine.size, placement, machine.hosts)
        return work.asked_placement, work.fingerprint
    found = outline(algorithm, machine.size, placement, machine.hosts)
    if not found.ranks:
        return found.asked_placement, hash(algorithm)
    return found.asked_placement, hash((found.relation, found.work().fingerprint))
