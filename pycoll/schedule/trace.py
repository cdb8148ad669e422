"""From an algorithm to steps: the function is called once for each rank that is asked about."""

from __future__ import annotations

from functools import lru_cache

from pycoll.errors import ScheduleError, UsageError
from pycoll.schedule.algorithm import Algorithm
from pycoll.schedule.builder import ScheduleBuilder
from pycoll.schedule.evaluate import evaluate, first_chunks
from pycoll.schedule.placement import FLAT, Placement
from pycoll.schedule.rank_steps import RankSteps, scratch_of
from pycoll.schedule.schedule import Schedule, check_messages
from pycoll.schedule.step import Step


def _trace(algorithm: Algorithm, size: int, rank: int, placement: Placement) -> ScheduleBuilder:
    builder = ScheduleBuilder(size, rank, algorithm.collective, placement)
    algorithm(builder)
    return builder


def trace(
    algorithm: Algorithm, size: int, rank: int, placement: Placement = FLAT
) -> tuple[Step, ...]:
    """Return the steps that ``algorithm`` writes for one rank, unchecked against its peers."""
    return tuple(_trace(algorithm, size, rank, placement).steps)


@lru_cache(maxsize=64)
def rank_steps(
    algorithm: Algorithm, size: int, rank: int, placement: Placement = FLAT
) -> RankSteps:
    """Return one rank's steps, traced alone and unchecked against its peers.

    Only where a rank keeps in scratch what others send are all of them traced, since which chunk
    lies there is known to the senders alone.
    """
    builder = _trace(algorithm, size, rank, placement)
    steps = tuple(builder.steps)
    if scratch_of(steps):
        if not algorithm.collective.equal_blocks:
            return schedule(algorithm, size, placement).of(rank)
        steps = tuple(
            step._replace(
                chunks=first_chunks(step.chunks, builder.nchunks),
                source=step.source and first_chunks(step.source, builder.nchunks),
            )
            for step in steps
        )
    return RankSteps(
        *(algorithm.name, algorithm.collective, size, rank),
        *(builder.nchunks, scratch_of(steps), steps),
    )


#: Schedules by algorithm, size and placement; None for the placement where no rank asked for it.
_known: dict[tuple[Algorithm, int, Placement | None], Schedule] = {}
KNOWN = 64  #: schedules that are kept


def schedule(algorithm: Algorithm, size: int, placement: Placement | None = None) -> Schedule:
    """Return ``algorithm``'s schedule for ``size`` ranks; every message has both its ends."""
    placement = placement or FLAT
    for level in placement.levels:
        if len(level.groups) != size:
            raise UsageError(
                f"{algorithm.name}: size is {size}, but level {level.name!r} of the placement "
                f"has {len(level.groups)} ranks"
            )
    found = _known.get((algorithm, size, None)) or _known.get((algorithm, size, placement))
    if found is None:
        found, asked = _build(algorithm, size, placement)
        while len(_known) >= KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[algorithm, size, placement if asked else None] = found
    return found


def forget() -> None:
    """Let go of what is kept: of thousands of ranks it is much."""
    _known.clear()
    rank_steps.cache_clear()


def asks_placement(algorithm: Algorithm, size: int, placement: Placement | None = None) -> bool:
    """Tell whether the schedule depends on the placement."""
    schedule(algorithm, size, placement)
    return (algorithm, size, None) not in _known


def _build(algorithm: Algorithm, size: int, placement: Placement) -> tuple[Schedule, bool]:
    """Return the schedule, and whether any rank asked for the placement."""
    if size < 1:
        raise UsageError(f"{algorithm.name}: size is {size}, want at least 1")
    builders = [_trace(algorithm, size, rank, placement) for rank in range(size)]
    nchunks = builders[0].nchunks
    for b in builders:
        if b.nchunks != nchunks:
            raise ScheduleError(
                f"{algorithm.name}: rank {b.rank} cuts {b.nchunks} chunks and rank 0 {nchunks}; "
                "the number may depend on the size only"
            )
    result = Schedule(
        algorithm.name,
        algorithm.collective,
        size,
        nchunks,
        max(b.nscratch for b in builders),
        tuple(tuple(b.steps) for b in builders),
    )
    check_messages(result)
    if result.nscratch:
        # Which chunk a place of scratch holds is known only to the sender.
        result = evaluate(result).resolved
    return result, any(b.asked_placement for b in builders)
