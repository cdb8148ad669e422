"""Timing: the seconds of what ranks do, by what each operation costs and what messages cross."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pycoll.cost.folding import folded
from pycoll.cost.kernel_price import KernelPrice
from pycoll.cost.lanes import fewest
from pycoll.cost.machine import CACHE_BYTES, MEMORY_BYTES, STRIPE_BYTES, WAKE, Machine, Toll
from pycoll.cost.outline import Outline
from pycoll.cost.simulate import EdgeRoutes, Scene, SimRoute, simulate
from pycoll.cost.work import Operation, Work
from pycoll.program.isa import CHUNK_UNIT, MAX_SOURCES
from pycoll.program.slots import LINES, tile_bytes

#: Messages of so many bytes lie in the line of their count.
INLINE_BYTES = 40
#: Tiles that are simulated. What follows costs the same again and again.
TILES = 6
#: Calls of a rooted collective that follow each other, and of which one is told: they overlap, as a
#: rank that has done its part goes on. A single call is all latency, a long row none.
CALLS = 6
#: In a described cluster, for which no call waits, more are, until a further one costs the same but
#: for this share: it takes as many to fill a deep tree as it has levels.
MOST_TILES = 48
SETTLED = 0.05
#: So many edges have been seen to cost more and more; further ones find the cache lost already.
SPREAD_EDGES = 7
#: Up to so many ranks, all are simulated that differ at all; in a described cluster, where each has
#: ways of its own, up to fewer, for a message crosses many links.
WHOLE_RANKS = 64
WHOLE_DESCRIBED = 32


def whole_ranks(machine: Machine) -> int:
    """Return up to how many ranks a few are taken for all only if their steps are the same."""
    return WHOLE_DESCRIBED if machine.topology is not None else WHOLE_RANKS


def seconds_of(
    work: Work,
    nbytes: int,
    machine: Machine,
    blocks: tuple[int, ...] | None = None,
    *,
    chunk: float | None = None,
    limit: float = math.inf,
) -> float:
    """Return the seconds of one call of ``nbytes``, by a simulation; see `CALLS`.

    Args:
        work: What the ranks do.
        nbytes: Of the message.
        machine: Where it runs.
        blocks: Bytes of each block, where they differ.
        chunk: Bytes of every chunk, where the work is that of fewer ranks and so of fewer chunks.
        limit: As of `predict`.

    Raises:
        Stalled: The ranks that are simulated do not stand for all.
    """
    lengths = lengths_of(work.nchunks, nbytes, blocks) if chunk is None else chunk
    longest = lengths if isinstance(lengths, float) else max(lengths, default=0.0)
    most = machine.message_bytes(work.most_edges, work.widest)
    tile = max(CHUNK_UNIT, tile_bytes(most, work.widest, most))
    price = price_of(work, nbytes, machine, longest)
    tile *= price.instances  # each moves its part of every chunk, in tiles of its own
    # Chunks are cut at whole units: of the shortest messages one is longer than its share.
    message = min(nbytes, work.widest * min(math.ceil(longest / CHUNK_UNIT) * CHUNK_UNIT, tile))
    each, calls = max(1, math.ceil(longest / tile)), CALLS if work.rooted else 1
    tiles, limit = calls * each, calls * limit
    entry = machine.rates.entry
    if tiles <= TILES:
        scene = _scene(work, price, machine, lengths, tiles, 1 / each, message, limit)
        return entry + simulate(scene) / calls
    share = tile / longest if each > TILES else 1 / each
    scene = _scene(work, price, machine, lengths, 1, share, message, limit)

    def run(n: int) -> Scene:
        return replace(scene, tiles=n)

    some, many = TILES // 2, TILES
    first, second = simulate(run(some)), simulate(run(many))
    further = (second - first) / (many - some)
    while machine.topology is not None and 2 * many <= min(tiles, MOST_TILES):
        if second >= 2 * first * (1 - SETTLED):  # tiles do not overlap
            break
        some, many, first, second = many, 2 * many, second, simulate(run(2 * many))
        before, further = further, (second - first) / (many - some)
        if abs(further - before) <= SETTLED * further:
            break
    if math.inf in (first, second):
        return math.inf
    # The first tiles may find links idle for which all further ones queue.
    further = max(further, scene.busiest())
    return entry + (first + (calls / share - some) * further) / calls


def lengths_of(
    nchunks: int, nbytes: int, blocks: tuple[int, ...] | None = None
) -> float | list[float]:
    """Return the bytes of every chunk; one number where all are alike."""
    if blocks is None:
        return nbytes / nchunks
    parts = max(1, nchunks // len(blocks))
    return [block / parts for block in blocks for _ in range(parts)]


def _scene(
    work: Work,
    price: Price,
    machine: Machine,
    lengths: float | Sequence[float],
    tiles: int,
    share: float,
    message: int,
    limit: float,
) -> Scene:
    """Return ``tiles`` tiles, each the ``share`` of every chunk; no message is longer."""
    # A rank that stands for all ranks of its host stands for their turns on its core, too.
    alone = work.ranks == 1 and machine.turns > 1
    pace = machine.turns if alone else 1.0
    sizes = [moved(o, lengths) * share for o in work.operations]
    hosts = machine.hosts or (0,) * machine.size
    tolls = [machine.toll(work.sender(e), e[0]) for e in work.edges]
    # In a row of rooted calls ranks are ahead of those that wait, and wake them once for several.
    wake = 0.0 if work.rooted else WAKE * machine.rates.switch
    return Scene(
        work,
        [price.of(o, n, tolls) * pace for o, n in zip(work.operations, sizes, strict=True)],
        sizes,
        _ways(work, sizes, machine, hosts, machine.switch * pace if alone else 0.0, price.link),
        _depths(work, message, machine, hosts),
        tiles,
        hosts[: work.ranks],
        work.ranks if alone else max(1, machine.cores),
        machine.switch,
        wake,
        STRIPE_BYTES,
        limit,
        [price.lead(o, n) for o, n in zip(work.operations, sizes, strict=True)],
    )


def _depths(work: Work, longest: int, machine: Machine, hosts: Sequence[int]) -> Sequence[int]:
    """Return how many messages of a call may be on their way on each edge."""
    near, far = (
        LINES if longest <= most else machine.slots
        for most in (INLINE_BYTES, max(INLINE_BYTES, machine.small_bytes))
    )
    return [near if hosts[e[0]] == hosts[work.sender(e)] else far for e in work.edges]


def moved(operation: Operation, lengths: float | Sequence[float]) -> float:
    """Return the bytes that an operation sends to each of its destinations."""
    first, n = operation.chunks.chunk, operation.chunks.nchunks
    if isinstance(lengths, float):
        return n * lengths
    if first < 0:  # scratch: which chunks lie there only the sender knows
        return sum(lengths) / len(lengths) * n
    return sum(lengths[first : first + n])


def beside(machine: Machine) -> float:
    """Return times that a copy costs where some of a rank's peers share its core."""
    share = (machine.turns - 1) / max(1, machine.crew - 1)
    return 1 - share * (1 - machine.rates.beside)


class Price(Protocol):
    """What operations cost the rank that does them."""

    instances: int  #: parts of every chunk that are moved side by side
    link: float  #: bytes per second of a rank's link to those of its host; infinite: it has none

    def of(self, o: Operation, nbytes: float, tolls: Sequence[Toll]) -> float:
        """Return the seconds of an operation on so many bytes; every edge has its toll."""

    def lead(self, o: Operation, nbytes: float) -> float:
        """Return how many of these go by while what it sends crosses links already."""


def price_of(work: Work, nbytes: int, machine: Machine, chunk: float) -> Price:
    """Return what a call's operations cost, whose longest chunk is so many bytes."""
    if machine.kernel is not None:
        return KernelPrice(work, nbytes, machine.kernel, machine.hosts)
    return _EnginePrice(work, nbytes, machine)


class _EnginePrice:
    """What operations cost the CPU of the rank that does them."""

    instances = 1
    link = math.inf  # what a message costs is to read and to write memory

    def __init__(self, work: Work, nbytes: int, machine: Machine) -> None:
        rates, turns = machine.rates, machine.turns
        edges = max(work.peers(rank) for rank in range(work.ranks)) if work.ranks else 0
        others = min(max(0, edges - 1), SPREAD_EDGES)
        crowded = nbytes * turns > CACHE_BYTES
        from_memory = nbytes * turns >= MEMORY_BYTES
        scale = rates.memory if from_memory else 1.0
        self._copy = rates.copy * scale * beside(machine)
        self._copy *= 1 + rates.spread * others * crowded
        self._fold = rates.fold * scale
        self._store = rates.store * scale
        self._fused = rates.fused if from_memory else 0.0

    def of(self, o: Operation, nbytes: float, tolls: Sequence[Toll]) -> float:
        """Return the seconds of an operation."""
        partial = -(-(o.operands - 1) // (MAX_SOURCES - 1)) - 1  # folds that are folded on
        seconds = nbytes * (
            self._copy
            + (o.operands - 1 + max(0, partial)) * self._fold
            + (o.stores - 1 + max(0, partial)) * self._store
            + (self._fused if o.operands > 1 and o.destinations else 0.0)
        )
        for e in o.sources:
            seconds += tolls[e].receive + nbytes * tolls[e].byte
        for e in o.destinations:
            seconds += tolls[e].send + nbytes * tolls[e].byte
        return seconds

    def lead(self, o: Operation, nbytes: float) -> float:
        """Return 0: a message is whole before it is sent."""
        return 0.0


def own_seconds(found: Outline, nbytes: int, machine: Machine) -> float:
    """Return the seconds that the busiest of the ranks that stand for all works for a call."""
    work = found.work(dict.fromkeys(found.counts(), 1))
    chunk = nbytes / found.nchunks
    price = price_of(work, nbytes, machine, chunk)
    tolls = [machine.toll(work.sender(e), e[0]) for e in work.edges]
    each = [price.of(o, o.chunks.nchunks * chunk, tolls) for o in found.operations]
    return max(
        sum(n * each[o] for runs in rank for turn, n in runs for o in turn) for rank in found.runs
    )


def _ways(
    work: Work,
    sizes: Sequence[float],
    machine: Machine,
    hosts: Sequence[int],
    wake: float,
    link: float,
) -> Sequence[EdgeRoutes]:
    """Return what each edge's messages may cross; every operation sends messages of its size."""
    if machine.topology is not None:
        cut = [True] * len(work.edges)
        for operation, n in zip(work.operations, sizes, strict=True):
            for number in operation.destinations:
                cut[number] = cut[number] and n >= STRIPE_BYTES
        whole = work.ranks == machine.size
        return fewest(_described(work, machine) if whole else folded(work, machine), cut)
    rates = machine.rates
    near = EdgeRoutes(max(rates.latency, wake))
    latency, bandwidth, incast = (
        # Flow control between switches and adapters keeps their queues from overflowing.
        (rates.rdma_latency, rates.rdma_bandwidth, 0.0)
        if machine.rdma
        else (rates.network_latency, rates.network_bandwidth, rates.incast)
    )
    ways = []
    senders = Counter(e[0] for e in work.edges if hosts[e[0]] != hosts[work.sender(e)])
    turns = (machine.size - 1).bit_length()  # senders that come one after the other, if so many
    seats = set(hosts[: work.ranks])
    for edge in work.edges:
        to = hosts[edge[0]]
        frm = hosts[work.sender(edge)]
        if to == frm:
            ways.append(near if link == math.inf else _linked(near.latency, work, edge, link))
            continue
        # The sender may be one that is not simulated: its host is like the one that is.
        out = frm if frm in seats else to
        into = bandwidth / (1 + incast * max(0, senders[edge[0]] - turns))
        lane = SimRoute(max(latency, wake), ((2 * out, bandwidth), (2 * to + 1, into)))
        ways.append(EdgeRoutes(lane.latency, (lane,)))
    return ways


def _linked(latency: float, work: Work, edge: tuple[int, int, int], bandwidth: float) -> EdgeRoutes:
    """Return the way from one GPU to another of its host: out of the one's link, into the other's.

    Negative numbers are not those of a host's links.
    """
    out, into = work.sender(edge) % work.ranks, edge[0]
    links = (-2 * out - 1, bandwidth), (-2 * into - 2, bandwidth)
    return EdgeRoutes(latency, (SimRoute(latency, links),))


def _described(work: Work, machine: Machine) -> list[EdgeRoutes]:
    rates = machine.rates
    numbers: dict[object, int] = {}
    ways = []
    for edge in work.edges:
        lanes = []
        for route in machine.routes(work.sender(edge), edge[0]):
            links = [(numbers.setdefault(x, len(numbers)), x.bandwidth) for x in route.links]
            lanes.append(SimRoute(rates.latency + route.latency, tuple(links), route.share))
        ways.append(EdgeRoutes(min(lane.latency for lane in lanes), tuple(lanes)))
    return ways
