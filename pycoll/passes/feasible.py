"""Feasible: whether a schedule with fused moves still finishes on the fewest slots.

A fused move frees the slot it reads only when it holds the slots it fills, so fusing can close
a circle of waits that the single steps leave open. Counts decide, and one run decides for all
interleavings: nobody's control flow depends on data, and each count has one signaller. So one
tile decides for any number of tiles: its run leaves all slots free, as it found them.
"""

from __future__ import annotations

from typing import NamedTuple

from pycoll.schedule import Buffer, Kind, Schedule, Step
from pycoll.schedule.evaluate import accesses
from pycoll.schedule.order import cross_channel

SLOTS = 2  #: the fewest that an edge has; more slots only ever unblock

EdgeNumbers = dict[tuple[int, int, int], int]  #: (source, destination, channel) -> number


class Group(NamedTuple):
    """Steps that may become one move; edges by number."""

    receives: tuple[int, ...]
    sends: tuple[int, ...]
    after: tuple[tuple[int, int], ...]  #: (stream, how many of its groups must be done)


def feasible(s: Schedule) -> bool:
    """Tell whether all ranks finish with every step that may fuse fused."""
    edges: EdgeNumbers = {}
    streams: list[list[Group]] = []
    for rank, steps in enumerate(s.ranks):
        streams += _streams(rank, steps, s.collective.in_place, edges, len(streams))
    return _finishes(streams, len(edges))


def _streams(
    rank: int, steps: tuple[Step, ...], in_place: bool, edges: EdgeNumbers, base: int
) -> list[list[Group]]:
    """Return a rank's channels as groups; the first has number ``base``."""
    numbers = {c: base + i for i, c in enumerate(sorted({step.channel for step in steps}))}
    after = cross_channel(accesses(steps, in_place)) if len(numbers) > 1 else None
    streams: dict[int, list[Group]] = {c: [] for c in numbers}
    done: list[tuple[int, int]] = []  # per step: its stream, groups of it done behind the step
    value: dict[int, tuple[bool, int, int]] = {}  # channel -> what its last group makes or sends
    for i, step in enumerate(steps):
        groups, channel, chunks = streams[step.channel], step.channel, step.chunks
        made = (chunks.buffer is Buffer.SCRATCH, chunks.place, chunks.nchunks)
        waits = tuple(done[j] for j in after[i]) if after else ()
        if step.kind is Kind.SEND:
            edge = edges.setdefault((rank, step.peers[0], channel), len(edges))
            if value.get(channel) == made and edge not in groups[-1].sends:
                receives, sends, earlier = groups[-1]
                groups[-1] = Group(receives, (*sends, edge), earlier + waits)
            else:
                groups.append(Group((), (edge,), waits))
        else:
            receives = tuple(
                edges.setdefault((p, rank, channel), len(edges)) for p in step.senders(rank)
            )
            groups.append(Group(receives, (), waits))
        value[channel] = made
        done.append((numbers[channel], len(groups)))
    return [streams[c] for c in sorted(streams)]


def _finishes(streams: list[list[Group]], nedges: int) -> bool:
    filled, consumed, waiter = [0] * nedges, [0] * nedges, [-1] * nedges
    at = [0] * len(streams)  # groups done
    watchers: dict[int, list[int]] = {}  # stream -> streams that wait for it
    ready = list(range(len(streams)))
    while ready:
        me = ready.pop()
        groups = streams[me]
        while at[me] < len(groups):
            receives, sends, after = groups[at[me]]
            blocker = -1
            for e in receives:
                if filled[e] == consumed[e]:
                    blocker = e
            for e in sends:
                if filled[e] - consumed[e] == SLOTS:
                    blocker = e
            if blocker >= 0:
                waiter[blocker] = me
                break
            behind = [stream for stream, count in after if at[stream] < count]
            if behind:
                watchers.setdefault(behind[0], []).append(me)
                break
            at[me] += 1
            for e in receives:
                consumed[e] += 1
            for e in sends:
                filled[e] += 1
            for e in receives + sends:
                if waiter[e] >= 0:
                    ready.append(waiter[e])
                    waiter[e] = -1
            if watchers:
                ready += watchers.pop(me, ())
    return all(count == len(groups) for count, groups in zip(at, streams, strict=True))
