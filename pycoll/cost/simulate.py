"""Simulate: the time until the last rank has finished, by events of ranks, messages and credits.

Each rank is one thread that does one operation at a time, in the order of its channels; an
operation begins when all its messages and slots are there. A message leaves when the operation
ends, waits at each link on its way for those before it, and is seen after their latency. Ranks
that outnumber their host's cores take turns: one keeps its core until it has nothing to do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from pycoll.cost.work import Work


class Stalled(Exception):
    """Ranks wait for each other: the ranks that were simulated do not stand for all."""


@dataclass(slots=True)
class Way:
    """What one edge's messages cross."""

    latency: float
    links: tuple[tuple[int, float], ...] = ()  #: number and bandwidth of what it shares


@dataclass(slots=True)
class Scene:
    """One simulation: work, what each operation costs, and what the messages cross."""

    work: Work
    seconds: Sequence[float]  #: of each operation's own work on one tile
    nbytes: Sequence[float]  #: that each operation sends to each destination, of one tile
    ways: Sequence[Way]  #: of each edge
    depth: int  #: messages on their way per edge
    tiles: int
    hosts: Sequence[int]  #: of the ranks that are simulated
    cores: int  #: of each host
    switch: float  #: seconds of a core that changes to another rank
    limit: float = math.inf  #: seconds behind which nobody asks for the end


def simulate(scene: Scene) -> float:
    """Return the seconds until all ranks have finished; infinity behind the limit."""
    return _Run(scene).run()


@dataclass(slots=True)
class _Stream:
    """One channel of a rank."""

    operations: Sequence[int]
    at: int = 0  #: the next one
    tile: int = 0


@dataclass(slots=True)
class _Message:
    """One that crosses links."""

    edge: int
    nbytes: float
    crossed: int = 0  #: links
    end: float = 0.0  #: when its last byte has left the last of them


#: What a rank waits for besides one message: a time that is known, or whatever comes first.
KNOWN = 1 << 60
ANY = 1 << 61


class _Run:
    def __init__(self, scene: Scene) -> None:
        work = self.work = scene.work
        self.scene = scene
        edges = range(len(work.edges))
        self.arrivals: list[list[float]] = [[] for _ in edges]
        self.credits: list[list[float]] = [[] for _ in edges]
        self.sent = [0] * len(work.edges)
        self.received = [0] * len(work.edges)
        self.to = [edge[0] for edge in work.edges]
        self.frm = [work.sender(edge) % work.ranks for edge in work.edges]
        self.free: dict[int, float] = {}  # link -> when it is
        self.messages: list[_Message] = []  # that cross links
        self.done = [0] * len(work.operations)  # tiles
        self.ended = [0.0] * len(work.operations)
        self.streams = [[_Stream(ops) for ops in channels] for channels in work.streams]
        self.busy = [0.0] * work.ranks
        #: what a rank waits for: an edge's message, ~edge for its credit, None for nothing,
        #: ANY where it has several channels
        self.waiting: list[int | None] = [None] * work.ranks
        self.events = [(0.0, i, i) for i in range(work.ranks)]
        self.order = count(work.ranks)
        crews = {h: list(scene.hosts).count(h) for h in set(scene.hosts)}
        self.shared = any(crew > scene.cores for crew in crews.values())
        self.idle = {h: [-1] * scene.cores for h in crews}  # last ranks of the idle cores
        self.queue: dict[int, deque[int]] = {h: deque() for h in crews}
        self.queued = [False] * work.ranks
        self.waited = [False] * work.ranks
        self.holds = [not self.shared] * work.ranks

    def run(self) -> float:
        events, limit = self.events, self.scene.limit
        while events:
            now, _, rank = heappop(events)
            if now > limit:
                return math.inf
            if rank < 0:
                self._cross(self.messages[~rank], ~rank, now)
                continue
            if now < self.busy[rank] or self.queued[rank]:
                continue  # woken while it works: it looks again when it is done
            self._step(rank, now)
        if any(self.streams):
            raise Stalled
        return max(self.busy, default=0.0)

    def _step(self, rank: int, now: float) -> None:
        """Begin the first operation that can, or wait."""
        soonest, lacks = math.inf, None
        self.waiting[rank] = None
        for stream in self.streams[rank]:
            number = stream.operations[stream.at]
            at = self._possible(number, stream.tile)
            if at <= now:
                if self.holds[rank] or self._take_core(rank, now):
                    self._execute(rank, stream, number, now)
                return
            soonest = min(soonest, at)
            lacks = self.lacks if lacks is None else ANY
        self.waited[rank] = True
        if self.shared and self.holds[rank]:
            self._leave_core(rank, now)
        if soonest < math.inf:
            heappush(self.events, (soonest, next(self.order), rank))
        self.waiting[rank] = lacks

    def _possible(self, number: int, tile: int) -> float:
        """Return when an operation can begin, as far as that is known; else infinity."""
        operation, at = self.work.operations[number], 0.0
        self.lacks = KNOWN
        for e in operation.sources:
            n = self.received[e]
            if n >= len(self.arrivals[e]):
                self.lacks = e
                return math.inf
            at = max(at, self.arrivals[e][n])
        for e in operation.destinations:
            n = self.sent[e] - self.scene.depth
            if n >= 0:
                if n >= len(self.credits[e]):
                    self.lacks = ~e
                    return math.inf
                at = max(at, self.credits[e][n])
        for other in operation.after:
            if self.done[other] <= tile:
                self.lacks = ANY
                return math.inf
            at = max(at, self.ended[other])
        return at

    def _execute(self, rank: int, stream: _Stream, number: int, start: float) -> None:
        scene, operation = self.scene, self.work.operations[number]
        end = self.busy[rank] = max(start, self.busy[rank]) + scene.seconds[number]
        for e in operation.sources:
            self.received[e] += 1
            at = end + scene.ways[e].latency
            self.credits[e].append(at)
            if self.waiting[self.frm[e]] in (~e, ANY):
                heappush(self.events, (at, next(self.order), self.frm[e]))
        for e in operation.destinations:
            self.sent[e] += 1
            if scene.ways[e].links:
                heappush(self.events, (end, next(self.order), ~len(self.messages)))
                self.messages.append(_Message(e, scene.nbytes[number]))
            else:
                self._deliver(e, end + scene.ways[e].latency)
        self.done[number] += 1
        self.ended[number] = end
        stream.at += 1
        if stream.at == len(stream.operations):
            stream.at = 0
            stream.tile += 1
            if stream.tile == scene.tiles:
                self.streams[rank].remove(stream)
        heappush(self.events, (end, next(self.order), rank))

    def _cross(self, message: _Message, number: int, now: float) -> None:
        """Let a message take the next link on its way; links begin before the one before ends."""
        way = self.scene.ways[message.edge]
        link, bandwidth = way.links[message.crossed]
        start = max(now, self.free.get(link, 0.0))
        self.free[link] = start + message.nbytes / bandwidth
        message.end = max(message.end, self.free[link])
        message.crossed += 1
        if message.crossed < len(way.links):
            heappush(self.events, (start, next(self.order), ~number))
        else:
            self._deliver(message.edge, message.end + way.latency)

    def _deliver(self, edge: int, at: float) -> None:
        self.arrivals[edge].append(at)
        if self.waiting[self.to[edge]] in (edge, ANY):
            heappush(self.events, (at, next(self.order), self.to[edge]))

    def _take_core(self, rank: int, now: float) -> bool:
        """Take a core of the host, or queue for one."""
        host = self.scene.hosts[rank]
        idle = self.idle[host]
        if not idle:
            self.queue[host].append(rank)
            self.queued[rank] = True
            return False
        same = rank in idle
        idle.remove(rank if same else idle[0])
        self.holds[rank] = True
        # In calls that follow each other a rank begins the next one while it has its core.
        if not same and self.waited[rank]:
            self.busy[rank] = now + self.scene.switch
        return True

    def _leave_core(self, rank: int, now: float) -> None:
        host = self.scene.hosts[rank]
        self.holds[rank] = False
        self.idle[host].append(rank)
        if self.queue[host]:
            next_one = self.queue[host].popleft()
            self.queued[next_one] = False
            heappush(self.events, (now, next(self.order), next_one))
