"""Hierarchical algorithms: one algorithm among near ranks, another between their groups.

A placement splits the ranks into groups, such as nodes; groups need not be equal. ``hierarchical``
makes one algorithm of two or three. What runs between groups may be hierarchical itself, on the
levels further out, so any number of levels can be combined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from pycoll.algorithms.levels import Split, split
from pycoll.errors import UsageError, quoted
from pycoll.schedule import (
    Algorithm,
    Collective,
    Placement,
    ScheduleBuilder,
    allgather,
    allreduce,
    broadcast,
    reduce,
    reduce_scatter,
)


def hierarchical(outer: Algorithm, *inner: Algorithm, level: str | None = None) -> Algorithm:
    """Make an algorithm of those that run inside the groups of a level and between them.

    Args:
        outer: What runs between groups; it may be hierarchical itself.
        inner: What runs inside a group: the same collective, and for an all-reduce two algorithms,
            either a reduce-scatter and an all-gather, so that each rank of a group takes a share of
            the message between groups, or a reduce and a broadcast, so that one rank takes it all.
        level: Name of the level; default: every level, the innermost first. Where nothing splits
            the ranks, ``outer`` alone runs.

    Returns:
        The Algorithm.

    Raises:
        UsageError: The collectives do not fit together.

    Example:
        >>> parts = (pycoll.algorithms.get("binomial", name) for name in ("reduce", "broadcast"))
        >>> pycoll.algorithms.hierarchical(pycoll.algorithms.get("ring"), *parts)
        <pycoll.Algorithm hierarchical_binomial_binomial_ring for allreduce>
    """
    for given in (outer, *inner):
        if not isinstance(given, Algorithm):
            raise UsageError(
                f"hierarchical: {quoted(given)} is no algorithm; want what pycoll.algorithms.get "
                "returns, or a function under @pycoll.algorithm"
            )
    if not (level is None or isinstance(level, str)):
        raise UsageError(f"hierarchical: level is {quoted(level)}, want the name of a level")
    got = (outer.collective, *(a.collective for a in inner))
    if got not in _MAKERS:
        raise UsageError(
            f"hierarchical of {', '.join(c.name for c in got)}, want one of "
            + "; ".join(", ".join(c.name for c in want) for want in _MAKERS)
        )

    def made(b: ScheduleBuilder) -> None:
        by_level(b, result if level is None else outer, outer, *inner, level=level)

    made.__name__ = made.__qualname__ = "_".join(
        ["hierarchical", *(a.name for a in inner), outer.name]
    )
    result = Algorithm(made, outer.collective)
    return result


def by_level(
    b: ScheduleBuilder,
    between: Algorithm,
    last: Algorithm,
    *inner: Algorithm,
    level: str | None = None,
) -> None:
    """Run ``inner`` in the groups of a level and ``between`` between them, or else ``last``."""
    s = split(b, level)
    if s is None:
        last(b)
    else:
        _MAKERS[last.collective, *(a.collective for a in inner)](b, s, between, *inner)


@lru_cache(maxsize=1024)  # every rank asks the same
def cut(algorithm: Algorithm, size: int, placement: Placement) -> int:
    """Return how many parts ``algorithm`` wants of every block."""
    if size == 1:
        return 1
    b = ScheduleBuilder(size, 0, algorithm.collective, placement)
    algorithm(b)
    return b.nchunks // algorithm.collective.nblocks(size)


@lru_cache(maxsize=64)  # every rank asks the same
def cuts(algorithm: Algorithm, placement: Placement, groups: tuple[tuple[int, ...], ...]) -> int:
    """Return into how many parts every block is cut so that all groups have what they want."""
    return math.lcm(*(cut(algorithm, len(g), placement.among(g)) for g in groups))


def shared_allreduce(
    b: ScheduleBuilder, s: Split, outer: Algorithm, scatter: Algorithm, gather: Algorithm
) -> None:
    """Reduce-scatter in the group, all-reduce each lane between groups, all-gather in the group."""
    wants = [cut(outer, len(s.groups), b.placement.among(s.lane(0)))]
    wants += [cuts(a, b.placement, s.groups) for a in (scatter, gather)]
    width = math.lcm(*wants)
    b.chunks(s.lanes * width)
    lanes = [range(lane * width, (lane + 1) * width) for lane in range(s.lanes)]
    shares = [[c for lane in s.owned(r) for c in lanes[lane]] for r in s.mine]
    scatter(b.within(s.mine, shares, reduce_scatter))
    for lane in s.owned(b.rank):
        outer(b.within(s.lane(lane), b.output[lanes[lane].start : lanes[lane].stop]))
    gather(b.within(s.mine, shares, allgather))


def led_allreduce(
    b: ScheduleBuilder, s: Split, outer: Algorithm, up: Algorithm, down: Algorithm
) -> None:
    """Reduce to the first rank of the group, all-reduce between these, broadcast in the group."""
    wants = [cut(outer, len(s.groups), b.placement.among(s.lane(0)))]
    wants += [cuts(a, b.placement, s.groups) for a in (up, down)]
    b.chunks(math.lcm(*wants))
    up(b.within(s.mine, collective=reduce))
    if b.rank == s.mine[0]:
        outer(b.within(s.lane(0)))
    down(b.within(s.mine, collective=broadcast))


def led_broadcast(b: ScheduleBuilder, s: Split, outer: Algorithm, inner: Algorithm) -> None:
    """Broadcast between the first ranks of all groups, then in the group."""
    between = cut(outer, len(s.groups), b.placement.among(s.lane(0)))
    b.chunks(math.lcm(between, cuts(inner, b.placement, s.groups)))
    if b.rank == s.mine[0]:
        outer(b.within(s.lane(0)))
    inner(b.within(s.mine))


def led_reduce(b: ScheduleBuilder, s: Split, outer: Algorithm, inner: Algorithm) -> None:
    """Reduce to the first rank of the group, then between these."""
    between = cut(outer, len(s.groups), b.placement.among(s.lane(0)))
    b.chunks(math.lcm(between, cuts(inner, b.placement, s.groups)))
    inner(b.within(s.mine))
    if b.rank == s.mine[0]:
        outer(b.within(s.lane(0)))


def laned_allgather(b: ScheduleBuilder, s: Split, outer: Algorithm, inner: Algorithm) -> None:
    """All-gather every lane between groups, then what each rank has now in the group."""
    for lane in s.owned(b.rank):
        outer(b.within(s.lane(lane), [s.blocks(g, lane) for g in s.groups]))
    for blocks in s.passes():
        inner(b.within(s.mine, blocks))


def laned_reduce_scatter(b: ScheduleBuilder, s: Split, outer: Algorithm, inner: Algorithm) -> None:
    """Reduce-scatter in the group what each rank takes further, then every lane between groups."""
    for blocks in s.passes():
        inner(b.within(s.mine, blocks))
    for lane in s.owned(b.rank):
        outer(b.within(s.lane(lane), [s.blocks(g, lane) for g in s.groups]))


_MAKERS: dict[tuple[Collective, ...], Callable[..., None]] = {
    (allreduce, reduce_scatter, allgather): shared_allreduce,
    (allreduce, reduce, broadcast): led_allreduce,
    (broadcast, broadcast): led_broadcast,
    (reduce, reduce): led_reduce,
    (allgather, allgather): laned_allgather,
    (reduce_scatter, reduce_scatter): laned_reduce_scatter,
}
