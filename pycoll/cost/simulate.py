"""Simulate: the time until the last rank has finished, by events of ranks, messages and credits.

Each rank is one thread that does one operation at a time, in the order of its channels; an
operation begins when all its messages and slots are there. A message leaves when the operation
ends, waits at each link on its way for those before it, and is seen after their latency. Ranks
that outnumber their host's cores take turns: one keeps its core until it has nothing to do. When
no other has anything to do either, those that wait sleep, and who sends to one must wake it.

Where two ranks have several routes, a message takes the one by which it arrives first; a long one
is cut over all of them, and is seen when its last piece has arrived. What is simplified: a link
serves one message after the other, whole, not packets in turn, and one that waits for a later link
does not hold up those before it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from pycoll.cost.work import Work


class Stalled(Exception):
    """Ranks wait for each other: the ranks that were simulated do not stand for all."""


class SimRoute(NamedTuple):
    """What a message crosses, whole or a piece of it."""

    latency: float
    links: tuple[tuple[int, float], ...]  #: number and bandwidth of what it shares
    share: float = 1.0  #: of a message that is cut


@dataclass(slots=True)
class EdgeRoutes:
    """What one edge's messages may cross; nothing that is shared where there are no routes."""

    latency: float  #: of the shortest route
    lanes: tuple[SimRoute, ...] = ()


@dataclass(slots=True)
class Scene:
    """One simulation: work, what each operation costs, and what the messages cross."""

    work: Work
    seconds: Sequence[float]  #: of each operation's own work on one tile
    nbytes: Sequence[float]  #: that each operation sends to each destination, of one tile
    ways: Sequence[EdgeRoutes]  #: of each edge
    depths: Sequence[int]  #: of each edge: messages that may be on their way
    tiles: int
    hosts: Sequence[int]  #: of the ranks that are simulated
    cores: int  #: of each host
    switch: float  #: seconds of a core that changes to another rank
    wake: float  #: seconds of a rank that wakes another one of its host
    stripe: float = math.inf  #: bytes of a message from which on it is cut over all its routes
    limit: float = math.inf  #: seconds behind which nobody asks for the end
    #: seconds of each operation in which its messages cross links already; empty: of none
    leads: Sequence[float] = ()

    def busiest(self) -> float:
        """Return the seconds of one tile that the busiest link needs."""
        loads: dict[int, float] = {}
        for operation, nbytes in zip(self.work.operations, self.nbytes, strict=True):
            for edge in operation.destinations:
                for lane in self.ways[edge].lanes:
                    for link, bandwidth in lane.links:
                        part = lane.share * nbytes / bandwidth
                        loads[link] = loads.get(link, 0.0) + part
        return max(loads.values(), default=0.0)


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
class _SimMessage:
    """One that is on its way."""

    edge: int
    number: int  #: of those of its edge
    pieces: int  #: that have not arrived
    at: float = 0.0  #: when the last of the others has


@dataclass(slots=True)
class _Piece:
    """What crosses links."""

    message: _SimMessage
    lane: SimRoute
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
        self.operations = work.operations
        self.depths, self.limit = scene.depths, scene.limit
        self.leads = scene.leads or [0.0] * len(work.operations)
        edges = range(len(work.edges))
        self.arrivals: list[list[float]] = [[] for _ in edges]
        self.credits: list[list[float]] = [[] for _ in edges]
        self.sent = [0] * len(work.edges)
        self.received = [0] * len(work.edges)
        self.to = [edge[0] for edge in work.edges]
        self.frm = [work.sender(edge) % work.ranks for edge in work.edges]
        self.free: dict[int, float] = {}  # link -> when it is
        self.pieces: list[_Piece] = []
        self.done = [0] * len(work.operations)  # tiles
        self.ended = [0.0] * len(work.operations)
        self.streams = [[_Stream(ops) for ops in channels] for channels in work.streams]
        self.busy = [0.0] * work.ranks
        #: what a rank waits for: an edge's message, ~edge for its credit, None for nothing,
        #: ANY where it has several channels
        self.waiting: list[int | None] = [None] * work.ranks
        self.events = [(0.0, i, i) for i in range(work.ranks)]
        self.order = count(work.ranks)
        crews = Counter(scene.hosts)
        self.shared = any(crew > scene.cores for crew in crews.values())
        self.idle = {h: [-1] * scene.cores for h in crews}  # last ranks of the idle cores
        self.queue: dict[int, deque[int]] = {h: deque() for h in crews}
        self.queued = [False] * work.ranks
        self.waited = [False] * work.ranks
        self.left = [math.inf] * work.ranks  # when a rank that waits has left its core
        self.calm = dict.fromkeys(crews, -math.inf)  # when a core of the host last fell idle
        self.holds = [not self.shared] * work.ranks

    def run(self) -> float:
        events, limit, pieces = self.events, self.limit, self.pieces
        while events:
            now, _, rank = heappop(events)
            if now > limit:
                return math.inf
            if rank < 0:
                self._cross(pieces[~rank], ~rank, now)
            elif now >= self.busy[rank] and not self.queued[rank]:
                self._step(rank, now)
            # Else it was woken while it works: it looks again when it is done.
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
            if at < soonest:
                soonest = at
            lacks = self.lacks if lacks is None else ANY
        self.waited[rank] = True
        if self.shared and self.holds[rank]:
            self._leave_core(rank, now)
        if soonest < math.inf:
            heappush(self.events, (soonest, next(self.order), rank))
        self.waiting[rank] = lacks

    def _possible(self, number: int, tile: int) -> float:
        """Return when an operation can begin, as far as that is known; else infinity."""
        operation, at = self.operations[number], 0.0
        for e in operation.sources:
            n, arrivals = self.received[e], self.arrivals[e]
            arrives = arrivals[n] if n < len(arrivals) else math.inf
            if arrives > at:
                if arrives == math.inf:
                    self.lacks = e
                    return math.inf
                at = arrives
        for e in operation.destinations:
            n = self.sent[e] - self.depths[e]
            if n >= 0:
                credits = self.credits[e]
                if n >= len(credits):
                    self.lacks = ~e
                    return math.inf
                if credits[n] > at:
                    at = credits[n]
        for other in operation.after:
            if self.done[other] <= tile:
                self.lacks = ANY
                return math.inf
            if self.ended[other] > at:
                at = self.ended[other]
        self.lacks = KNOWN
        return at

    def _execute(self, rank: int, stream: _Stream, number: int, start: float) -> None:
        scene, operation = self.scene, self.operations[number]
        end = self.busy[rank] = max(start, self.busy[rank]) + scene.seconds[number]
        for e in operation.sources:
            self.received[e] += 1
            at = end + scene.ways[e].latency
            self.credits[e].append(at)
            if self.waiting[self.frm[e]] in (~e, ANY):
                heappush(self.events, (at, next(self.order), self.frm[e]))
        for e in operation.destinations:
            if self.shared and self._sleeps(self.to[e], e, scene.hosts[rank]):
                self.left[self.to[e]] = math.inf
                end = self.busy[rank] = end + scene.wake
            self._send(e, scene.nbytes[number], end, self.leads[number])
            self.sent[e] += 1
        self.done[number] += 1
        self.ended[number] = end
        stream.at += 1
        if stream.at == len(stream.operations):
            stream.at = 0
            stream.tile += 1
            if stream.tile == scene.tiles:
                self.streams[rank].remove(stream)
        heappush(self.events, (end, next(self.order), rank))

    def _sleeps(self, rank: int, edge: int, host: int) -> bool:
        """Tell whether a rank of this host sleeps until this edge's message comes."""
        if self.scene.hosts[rank] != host or self.waiting[rank] not in (edge, ANY):
            return False
        return self.left[rank] <= self.calm[host]

    def _send(self, edge: int, nbytes: float, end: float, lead: float) -> None:
        """Let a message leave whose last byte is written at the end, its first one so much before.

        Nothing of it is seen before the end.
        """
        way, number = self.scene.ways[edge], self.sent[edge]
        self.arrivals[edge].append(math.inf)
        if not way.lanes:
            self._arrive(edge, number, end + way.latency)
            return
        lanes, now = way.lanes, end - lead
        if nbytes < self.scene.stripe:
            lane = lanes[0] if len(lanes) == 1 else self._soonest(lanes, nbytes, now)
            pieces = [(lane, nbytes)]
        else:
            pieces = [(lane, lane.share * nbytes) for lane in lanes]
        message = _SimMessage(edge, number, len(pieces))
        for lane, part in pieces:
            heappush(self.events, (now, next(self.order), ~len(self.pieces)))
            self.pieces.append(_Piece(message, lane, part, end=end))

    def _soonest(self, lanes: Sequence[SimRoute], nbytes: float, now: float) -> SimRoute:
        """Return the route by which a message arrives first, as far as that is known now."""
        free, best, least = self.free, lanes[0], math.inf
        for lane in lanes:
            narrow, begins = math.inf, now
            for link, bandwidth in lane.links:
                narrow = min(narrow, bandwidth)
                begins = max(begins, free.get(link, now))
            arrives = begins + nbytes / narrow + lane.latency
            if arrives < least:
                best, least = lane, arrives
        return best

    def _cross(self, piece: _Piece, number: int, now: float) -> None:
        """Let a piece take the next link on its way; links begin before the one before ends."""
        lane, message, free, events = piece.lane, piece.message, self.free, self.events
        links, nbytes = lane.links, piece.nbytes
        while True:
            link, bandwidth = links[piece.crossed]
            start = free.get(link, 0.0)
            if start < now:
                start = now
            free[link] = end = start + nbytes / bandwidth
            if end > piece.end:
                piece.end = end
            piece.crossed += 1
            if piece.crossed == len(links):
                break
            if start > self.limit or (events and events[0][0] <= start):
                heappush(events, (start, next(self.order), ~number))
                return
            now = start  # nothing else happens before
        arrives = piece.end + lane.latency
        if arrives > message.at:
            message.at = arrives
        message.pieces -= 1
        if not message.pieces:
            self._arrive(message.edge, message.number, message.at)

    def _arrive(self, edge: int, number: int, at: float) -> None:
        self.arrivals[edge][number] = at
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
        self.left[rank] = now
        if not self.queue[host]:
            self.calm[host] = now
        else:
            next_one = self.queue[host].popleft()
            self.queued[next_one] = False
            heappush(self.events, (now, next(self.order), next_one))
