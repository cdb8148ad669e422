"""Work: what every rank does in one call, as the engine will do it, near enough to be timed.

This is not lowering: it costs a tenth of that, and keeps no more than a simulation needs. A
value is sent on by the operation that makes it, and a store that nobody reads is not made, as
the passes have it.

Many schedules look the same from every rank, or from every rank of the same seat in its host.
Such a schedule is traced and simulated for those few ranks which the others repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from pycoll.schedule import Algorithm, Buffer, Chunks, Kind, Schedule, ScheduleBuilder, Step
from pycoll.schedule.order import Access, cross_channel
from pycoll.schedule.placement import Placement
from pycoll.schedule.step import places

Edge = tuple[int, int, int]  #: receiver, how far away the sender is (see `Relation`), channel


class Relation(NamedTuple):
    """How far two ranks are from each other, so that alike ranks have peers as far away.

    By default it is their difference. ``exclusive``: their exclusive or. ``widths``, of groups
    within groups: the difference of their places in the innermost group, that of these groups in
    the next one, and so on, all in one number.
    """

    size: int
    exclusive: bool = False
    widths: tuple[int, ...] = ()  #: ranks of each level's groups, the innermost first

    def distance(self, to: int, frm: int) -> int:
        """Return how far ``to`` is from ``frm``."""
        if self.exclusive:
            return to ^ frm
        return self._apart(to, frm) if self.widths else (to - frm) % self.size

    def receiver(self, frm: int, distance: int) -> int:
        """Return the rank that is so far from ``frm``."""
        if self.exclusive:
            return frm ^ distance
        if not self.widths:
            return (frm + distance) % self.size
        return self._apart(frm, self._apart(0, distance))

    def sender(self, to: int, distance: int) -> int:
        """Return the rank that ``to`` is so far from."""
        if self.exclusive:
            return to ^ distance
        return self._apart(to, distance) if self.widths else (to - distance) % self.size

    def _apart(self, a: int, b: int) -> int:
        """Return the difference at every level."""
        found, width = 0, 1
        for outer in (*self.widths, self.size):
            found += (a // width - b // width) * width % outer
            width = outer
        return found


@dataclass(slots=True)
class Operation:
    """One fused move: all its messages are there before it begins."""

    chunks: Chunks  #: whose bytes it moves
    sources: list[int]  #: edges
    destinations: list[int]  #: edges
    operands: int  #: sources, the rank's own value included
    stores: int  #: destinations, the rank's own place included
    after: list[int] = field(default_factory=list)  #: operations of the rank's other channels


@dataclass(slots=True)
class Work:
    """What the ranks that stand for all do."""

    size: int
    nchunks: int
    ranks: int  #: rank r does what rank r modulo this does
    relation: Relation  #: what the edges' distances are
    asked_placement: bool = False
    widest: int = 1  #: chunks of the widest message
    operations: list[Operation] = field(default_factory=list)
    #: per rank and channel, numbers of operations in order
    streams: list[list[list[int]]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    rooted: bool = False  #: a rank may begin the next call before others have ended this one

    def sender(self, edge: Edge) -> int:
        """Return the rank that sends; it may be one that another stands for."""
        to, distance, _ = edge
        return self.relation.sender(to, distance)

    @property
    def operations_per_rank(self) -> int:
        """Return the most that one rank does."""
        return max((sum(map(len, channels)) for channels in self.streams), default=0)

    @property
    def fingerprint(self) -> int:
        """Return a number that is equal where ranks do the same, whatever it is called."""
        operations = tuple(
            (
                places(o.chunks),
                *(tuple(row) for row in (o.sources, o.destinations, o.after)),
                o.operands,
                o.stores,
            )
            for o in self.operations
        )
        streams = tuple(tuple(map(tuple, channels)) for channels in self.streams)
        return hash((self.nchunks, self.ranks, operations, streams, tuple(self.edges)))

    @property
    def most_edges(self) -> int:
        """Return how many edges carry messages into one rank, the most of any."""
        return max(Counter(to for to, _, _ in self.edges).values(), default=0)

    def peers(self, rank: int) -> int:
        """Return how many ranks send to one."""
        return len({distance for to, distance, _ in self.edges if to == rank})


@lru_cache(maxsize=32)  # one of 20,000 steps takes 10 MB
def work_of(
    subject: Algorithm | Schedule,
    size: int,
    placement: Placement,
    hosts: tuple[int, ...],
) -> Work:
    """Return the work of an algorithm's ranks.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
    """
    if isinstance(subject, Schedule):
        return whole_work_of(subject, size, placement)
    period, sampled = sample(subject, size, placement, hosts)
    sides = dict(sampled)
    cube = not (size & (size - 1) or period & (period - 1))
    for exclusive in (False, True)[: 1 + cube]:
        relation = Relation(size, exclusive)
        like = {r: _shape(side.steps, r, relation) for r, side in sides.items()}
        if all(like[r] == like[r % period] for r in sides):
            ranks = range(period)
            break
    else:
        ranks, relation = range(size), Relation(size)
    for r in ranks:
        if r not in sides:
            sides[r] = _trace(subject, size, r, placement)
    work = _work([sides[r].steps for r in ranks], size, sides[0].nchunks, relation)
    work.asked_placement = any(side.asked_placement for side in sides.values())
    work.rooted = subject.collective.rooted
    return work


@lru_cache(maxsize=128)
def sample(
    algorithm: Algorithm, size: int, placement: Placement, hosts: tuple[int, ...]
) -> tuple[int, Mapping[int, ScheduleBuilder]]:
    """Return after how many ranks the machine looks the same, and a few ranks' sides."""
    period = period_of(size, hosts)
    return period, {r: _trace(algorithm, size, r, placement) for r in _samples(size, period)}


@lru_cache(maxsize=8)
def whole_work_of(subject: Algorithm | Schedule, size: int, placement: Placement) -> Work:
    """Return the work of all ranks, each by itself."""
    if isinstance(subject, Schedule):
        work = _work(subject.ranks, size, subject.nchunks)
        work.rooted = subject.collective.rooted
        return work
    sides = [_trace(subject, size, r, placement) for r in range(size)]
    work = _work([side.steps for side in sides], size, sides[0].nchunks)
    work.asked_placement = any(side.asked_placement for side in sides)
    work.rooted = subject.collective.rooted
    return work


def _trace(algorithm: Algorithm, size: int, rank: int, placement: Placement) -> ScheduleBuilder:
    builder = ScheduleBuilder(size, rank, algorithm.collective, placement)
    algorithm(builder)
    return builder


@lru_cache(maxsize=16)
def period_of(size: int, hosts: tuple[int, ...]) -> int:
    """Return after how many ranks the machine looks the same again."""
    if not hosts:
        return 1
    crew = hosts.count(hosts[0])
    even = size % crew == 0 and hosts == tuple(r // crew for r in range(size))
    return crew if even else size


def _samples(size: int, period: int) -> list[int]:
    """Return ranks whose steps show whether ``period`` holds: the ends and the middle."""
    seats = {0, min(1, period - 1), period - 1}
    middle = size // period // 2 * period
    return sorted(
        {first + seat for first in (0, period, middle) for seat in seats if first + seat < size}
        | {size - 1}
    )


def _shape(steps: Sequence[Step], rank: int, relation: Relation) -> list[tuple[object, ...]]:
    """Return what tells the steps of two ranks apart, if they are not the same but for the rank."""
    shape: list[tuple[object, ...]] = []
    for s in steps:
        far = sorted(relation.distance(p, rank) for p in s.peers)
        shape.append((s.kind, s.channel, s.chunks.nchunks, far))
    return shape


def _work(
    ranks: Sequence[Sequence[Step]], size: int, nchunks: int, relation: Relation | None = None
) -> Work:
    work = Work(size, nchunks, len(ranks), relation or Relation(size))
    numbers: dict[Edge, int] = {}
    for rank, steps in enumerate(ranks):
        write_side(work, numbers, rank, steps)
    work.edges = list(numbers)
    return work


def write_side(work: Work, numbers: dict[Edge, int], rank: int, steps: Sequence[Step]) -> None:
    """Add a rank's operations and streams to a work, and its edges to their numbers."""
    _Side(work, numbers, rank, steps).write()


class _Side:
    """One rank's steps on their way to operations."""

    def __init__(
        self, work: Work, numbers: dict[Edge, int], rank: int, steps: Sequence[Step]
    ) -> None:
        self.work = work
        self.numbers = numbers
        self.rank = rank
        self.steps = steps
        self.first = len(work.operations)
        self.of: list[int] = []  #: operation that each step became part of
        self.streams: dict[int, list[int]] = {}

    def write(self) -> None:
        last: dict[int, Operation] = {}  # channel -> what a further send may join
        for step in self.steps:
            channel, before = step.channel, last.get(step.channel)
            if step.kind is Kind.SEND:
                edge = self._edge(step.peers[0], True, channel)
                self.work.widest = max(self.work.widest, step.chunks.nchunks)
                if before is not None and _joins(before, step.chunks, edge):
                    before.destinations.append(edge)
                    before.stores += 1
                    self.of.append(self.streams[channel][-1])
                    continue
                made = Operation(step.chunks, [], [edge], 1, 1)
            else:
                senders = step.senders(self.rank)
                edges = [self._edge(p, False, channel) for p in senders]
                operands = max(1, len(step.peers)) if step.source is None else len(step.reads())
                made = Operation(step.chunks, edges, [], operands, 1)
            last[channel] = made
            self.streams.setdefault(channel, []).append(len(self.work.operations))
            self.of.append(len(self.work.operations))
            self.work.operations.append(made)
        self._drop_dead_stores()
        if len(self.streams) > 1:
            self._order()
        self.work.streams.append([self.streams[c] for c in sorted(self.streams)])

    def _edge(self, peer: int, sending: bool, channel: int) -> int:
        to, frm = (peer, self.rank) if sending else (self.rank, peer)
        edge = (to % self.work.ranks, self.work.relation.distance(to, frm), channel)
        return self.numbers.setdefault(edge, len(self.numbers))

    def _drop_dead_stores(self) -> None:
        """Uncount stores into places that are written again before anything reads them."""
        dead: set[int] = set()
        for step, number in zip(reversed(self.steps), reversed(self.of), strict=True):
            operation = self.work.operations[number]
            for chunks in step.writes():
                if dead.issuperset(places(chunks)) and operation.destinations:
                    operation.stores -= 1
                dead.update(places(chunks))
            for chunks in step.reads():
                if not _reads_own_store(step, operation):
                    dead.difference_update(places(chunks))

    def _order(self) -> None:
        touched = [
            Access(
                step.channel,
                [p for chunks in step.reads() for p in places(chunks)],
                [p for chunks in step.writes() for p in places(chunks)],
            )
            for step in self.steps
        ]
        after = cross_channel(touched)
        for number, earlier in zip(self.of, after, strict=True):
            own = self.work.operations[number].after
            own += [self.of[j] for j in earlier if self.of[j] != number]


def _joins(before: Operation, chunks: Chunks, edge: int) -> bool:
    b = before.chunks
    same = (b.place, b.nchunks, b.buffer is Buffer.SCRATCH) == (
        chunks.place,
        chunks.nchunks,
        chunks.buffer is Buffer.SCRATCH,
    )
    return same and edge not in before.destinations


def _reads_own_store(step: Step, operation: Operation) -> bool:
    """Tell whether a send takes its value from the operation that makes it, not from memory."""
    return step.kind is Kind.SEND and bool(operation.sources)
