"""Outline: what the ranks of an algorithm do where they are too many to look at all.

A few ranks are asked. Where what they do is the same but for who they are, one stands for all of
them, or one of each seat of a host for all of that seat, and its steps are looked at to the end. A
ring of n ranks repeats one operation 2n times: equal operations are kept once, and a stream is runs
of them, so that a simulation can make a few turns and go on from there.

Three relations of two ranks are known: their difference, their exclusive or, and the differences
of their places at every level of the placement. A message whose chunks lie round the end of the
buffer is sent in two pieces by some ranks only; such ranks count as alike, and one stands for them
that cuts none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from pycoll.cost.work import Operation, Relation, Work, period_of, write_side
from pycoll.schedule import Algorithm, Kind, ScheduleBuilder, Step
from pycoll.schedule.placement import Placement

#: Steps of rank 0 that are looked at before it is known whom it stands for.
GLANCE = 4096
#: The same of each other rank: as many as show who its peers are.
SIDE_GLANCE = 512
#: The part of the ranks behind which one more is asked: it divides no number of ranks evenly.
SOMEWHERE = 0.618
#: Peers of a rank beyond which its steps are not looked at to the end: each has one of its own.
CROWD = 512
#: Operations that may repeat together: those of one step of a ring are a few.
LONGEST_TURN = 8

Run = tuple[tuple[int, ...], int]  #: numbers of operations, and how often they come


class Move(NamedTuple):
    """What a step does, said so that it is the same of all ranks that are alike."""

    kind: Kind
    channel: int
    far: tuple[int, ...]  #: how far its peers are
    nchunks: int


class _Enough(Exception):
    """So many steps have been seen."""


class _Glance(ScheduleBuilder):
    """A builder that keeps no more than the first steps."""

    most = GLANCE
    cut = False

    def _add(self, step: Step) -> None:
        super()._add(step)
        if len(self.steps) >= self.most:
            self.cut = True
            raise _Enough


@dataclass(slots=True)
class Outline:
    """What is known of an algorithm at one size, from a few of its ranks."""

    size: int
    nchunks: int
    asked_placement: bool
    peers: int  #: of the rank with the most
    near: int  #: of them on its own host; of the rank with the most there
    most_edges: int  #: that carry messages into one rank; of the rank with the most
    widest: int  #: chunks of the widest message
    steps: int  #: of the rank with the most
    whole: bool  #: whether peers and steps were counted to the end
    ranks: int = 0  #: that stand for all; 0: the ranks are not alike
    relation: Relation = field(default_factory=lambda: Relation(1))
    operations: list[Operation] = field(default_factory=list)
    runs: list[list[list[Run]]] = field(default_factory=list)  #: by rank and channel
    edges: list[tuple[int, int, int]] = field(default_factory=list)

    def counts(self) -> list[int]:
        """Return how often turns come, each number once, the least first."""
        return sorted({n for rank in self.runs for runs in rank for _, n in runs})

    def work(self, turns: Mapping[int, int] | None = None) -> Work:
        """Return the ranks' work, with fewer turns where ``turns`` has their number."""
        turns = turns or {}
        work = Work(
            self.size,
            self.nchunks,
            self.ranks,
            self.relation,
            self.asked_placement,
            self.widest,
            self.operations,
            edges=self.edges,
        )
        for rank in self.runs:
            work.streams.append(
                [[o for turn, n in runs for o in turn * turns.get(n, n)] for runs in rank]
            )
        return work


@lru_cache(maxsize=64)
def outline(
    algorithm: Algorithm, size: int, placement: Placement, hosts: tuple[int, ...]
) -> Outline:
    """Return the outline of an algorithm.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
    """
    period = period_of(size, hosts)
    count = size // period
    hosts_seen = {0, 1 % count, count // 2, int(count * SOMEWHERE), count - 1}
    seats = {0, min(1, period - 1), period - 1}
    some = sorted({h * period for h in hosts_seen} | seats | {size - 1})
    seen = {r: _glance(algorithm, size, r, placement) for r in some}
    relation, ranks = None, 0
    if period < size or size == 1:
        relation, ranks = _alike(seen, size, period, _widths(size, placement))
    found = Outline(
        size,
        seen[0].nchunks,
        any(b.asked_placement for b in seen.values()),
        *_most_peers({r: b.steps for r, b in seen.items()}, hosts),
        max((s.chunks.nchunks for b in seen.values() for s in b.steps if s.peers), default=1),
        max(len(b.steps) for b in seen.values()),
        not seen[0].cut,
    )
    if relation is None or found.peers > CROWD:
        return found
    found.relation, found.whole = relation, True
    if ranks == 1:  # all are as one; the one with the fewest pieces stands for them
        cut = any(b.cut for b in seen.values())
        first = 0 if cut else min(some, key=lambda r: len(seen[r].steps))
        _fill(found, [_whole(algorithm, seen, first, size, placement)], [first], hosts)
        _repeat(found, period)
    else:
        sides = [_whole(algorithm, seen, r, size, placement) for r in range(ranks)]
        _fill(found, sides, range(ranks), hosts)
    return found


def _glance(algorithm: Algorithm, size: int, rank: int, placement: Placement) -> _Glance:
    builder = _Glance(size, rank, algorithm.collective, placement)
    builder.most = SIDE_GLANCE if rank else GLANCE
    with contextlib.suppress(_Enough):
        algorithm(builder)
    return builder


def _whole(
    algorithm: Algorithm, seen: Mapping[int, _Glance], rank: int, size: int, placement: Placement
) -> Sequence[Step]:
    """Return all steps of a rank."""
    if rank in seen and not seen[rank].cut:
        return seen[rank].steps
    builder = ScheduleBuilder(size, rank, algorithm.collective, placement)
    algorithm(builder)
    return builder.steps


def _most_peers(
    steps: Mapping[int, Sequence[Step]], hosts: tuple[int, ...]
) -> tuple[int, int, int]:
    """Return the most of any rank: peers, peers on its host, edges that come in."""
    peers = {rank: {p for s in mine for p in s.peers} - {rank} for rank, mine in steps.items()}
    near = (
        sum(hosts[p] == hosts[rank] for p in found) if hosts else len(found)
        for rank, found in peers.items()
    )
    edges = (
        len({(p, s.channel) for s in mine for p in s.senders(rank)}) for rank, mine in steps.items()
    )
    return max(map(len, peers.values())), max(near), max(edges)


def _widths(size: int, placement: Placement) -> tuple[int, ...]:
    """Return the ranks of a group of each level; none where groups are not equal and in order."""
    found = []
    for _, groups in placement.levels:
        width = groups.count(groups[0])
        if size % width or groups != tuple(r // width for r in range(size)):
            return ()
        found.append(width)
    nested = all(b % a == 0 for a, b in pairwise(found))
    return tuple(found) if nested else ()


def _alike(
    seen: Mapping[int, _Glance], size: int, period: int, widths: tuple[int, ...]
) -> tuple[Relation | None, int]:
    """Return by which relation the ranks do the same, and how many stand for all."""
    cube = not (size & (size - 1) or period & (period - 1))
    for relation in (
        Relation(size),
        *((Relation(size, exclusive=True),) if cube else ()),
        *((Relation(size, widths=widths),) if widths else ()),
    ):
        shapes = {r: _shape(b.steps, r, relation) for r, b in seen.items()}
        same = [_same(shapes[0], shapes[r], seen[0].cut, seen[r].cut) for r in seen]
        if all(same):
            return relation, 1
        by_seat = [
            _same(shapes[r % period], shapes[r], seen[r % period].cut, seen[r].cut)
            for r in seen
            if r % period in seen
        ]
        if 1 < period < size and all(by_seat):
            return relation, period
    return None, 0


def _shape(steps: Sequence[Step], rank: int, relation: Relation) -> list[Move]:
    """Return what a rank does, in terms of how far away its peers are; pieces count as one."""
    shape: list[Move] = []
    before: Step | None = None
    for s in steps:
        far = tuple(sorted(relation.distance(p, rank) for p in s.peers))
        move = Move(s.kind, s.channel, far, s.chunks.nchunks)
        # A piece goes on at the beginning of the buffer where the one before came to its end.
        around = before is not None and s.chunks.place == 0 and before.chunks.place > 0
        if around and far and move[:3] == shape[-1][:3]:
            move = move._replace(nchunks=move.nchunks + shape.pop().nchunks)
        shape.append(move)
        before = s
    return shape


def _same(mine: list[Move], other: list[Move], cut: bool, other_cut: bool) -> bool:
    """Tell whether two ranks do the same, as far as both were looked at."""
    if not (cut or other_cut):
        return mine == other
    n = min(len(mine), len(other)) - 1  # the last one may go on
    if (not cut and len(mine) < n) or (not other_cut and len(other) < n):
        return False
    return n > 0 and mine[:n] == other[:n]


def _fill(
    found: Outline,
    sides: Sequence[Sequence[Step]],
    ranks: Sequence[int],
    hosts: tuple[int, ...],
) -> None:
    """Write the operations of the ranks that stand for all, equal ones once."""
    found.ranks = len(sides)
    whole = Work(found.size, found.nchunks, found.ranks, found.relation)
    numbers: dict[tuple[int, int, int], int] = {}
    for rank, steps in zip(ranks, sides, strict=True):
        write_side(whole, numbers, rank, steps)
        peers, near, edges = _most_peers({rank: steps}, hosts)
        found.peers, found.near = max(found.peers, peers), max(found.near, near)
        found.most_edges = max(found.most_edges, edges)
        found.steps = max(found.steps, len(steps))
    found.edges, found.widest = list(numbers), max(found.widest, whole.widest)
    for channels in whole.streams:
        if len(channels) == 1:
            found.runs.append([list(_runs(_merged(found, whole, channels[0])))])
        else:
            found.runs.append(_apart(found, whole, channels))


def _merged(found: Outline, whole: Work, stream: Sequence[int]) -> list[int]:
    """Take over the operations of a rank with one channel, equal ones once."""
    known: dict[tuple[object, ...], int] = {}
    numbers: list[int] = []
    for number in stream:
        o = whole.operations[number]
        key = (o.chunks.nchunks, tuple(o.sources), tuple(o.destinations), o.operands, o.stores)
        if key not in known:
            known[key] = len(found.operations)
            found.operations.append(o)
        numbers.append(known[key])
    return numbers


def _apart(found: Outline, whole: Work, channels: Sequence[Sequence[int]]) -> list[list[Run]]:
    """Take over the operations of a rank whose channels wait for single ones of each other."""
    mine = sorted(number for stream in channels for number in stream)
    now = {number: len(found.operations) + i for i, number in enumerate(mine)}
    for number in mine:
        operation = whole.operations[number]
        operation.after = [now[a] for a in operation.after]
        found.operations.append(operation)
    return [[((now[number],), 1) for number in stream] for stream in channels]


def _runs(stream: Sequence[int]) -> Iterator[Run]:
    """Yield a stream as turns that repeat, the shortest that do."""
    at = 0
    while at < len(stream):
        turn: tuple[int, ...] = (stream[at],)
        n = 1
        for length in range(1, LONGEST_TURN + 1):
            again = tuple(stream[at : at + length])
            if (times := _times(stream, at, again)) > 1:
                turn, n = again, times
                break
        yield turn, n
        at += len(turn) * n


def _times(stream: Sequence[int], at: int, turn: tuple[int, ...]) -> int:
    """Return how often a turn stands there one behind the other."""
    n, length = 0, len(turn)
    while tuple(stream[at : at + length]) == turn:
        n, at = n + 1, at + length
    return n


def _repeat(found: Outline, crew: int) -> None:
    """Let the one rank that stands for all do so in every seat of a host of ``crew`` ranks."""
    if crew in (1, found.size):
        return
    edges, operations, runs = found.edges, found.operations, found.runs[0]
    numbers: dict[tuple[int, int, int], int] = {}
    made: list[Operation] = []
    found.runs = []
    for rank in range(crew):
        offset = len(made)
        for o in operations:
            sources = [(rank, *edges[e][1:]) for e in o.sources]
            destinations = [
                (found.relation.receiver(rank, edges[e][1]) % crew, *edges[e][1:])
                for e in o.destinations
            ]
            made.append(
                Operation(
                    o.chunks,
                    [numbers.setdefault(e, len(numbers)) for e in sources],
                    [numbers.setdefault(e, len(numbers)) for e in destinations],
                    o.operands,
                    o.stores,
                    [a + offset for a in o.after],
                )
            )
        found.runs.append(
            [[(tuple(o + offset for o in turn), n) for turn, n in channel] for channel in runs]
        )
    found.operations, found.edges, found.ranks = made, list(numbers), crew
