"""Predict: the seconds of one collective by a schedule, on a machine that need not exist."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from pycoll.cost.machine import CACHE_BYTES, MEMORY_BYTES, STRIPE_BYTES, Machine
from pycoll.cost.simulate import EdgeRoutes, Scene, SimRoute, Stalled, simulate
from pycoll.cost.work import Operation, Work, sample, whole_work_of, work_of
from pycoll.program.isa import CHUNK_UNIT, MAX_SOURCES
from pycoll.schedule import Algorithm, Kind, Schedule
from pycoll.schedule.placement import FLAT, Placement

#: Messages of so many bytes lie in the line of their count, and so many lines an edge has.
INLINE_BYTES = 40
LINES = 32
#: Tiles that are simulated. What follows costs the same again and again.
TILES = 6
#: In a described cluster, for which no call waits, more are, until a further one costs the same but
#: for this share: it takes as many to fill a deep tree as it has levels.
MOST_TILES = 48
SETTLED = 0.05
#: So many edges have been seen to cost more and more; further ones find the cache lost already.
SPREAD_EDGES = 7


def predict(
    subject: Algorithm | Schedule,
    nbytes: int,
    machine: Machine,
    *,
    placement: Placement = FLAT,
    blocks: Sequence[int] | None = None,
    most: int | None = None,
    limit: float = math.inf,
) -> float:
    """Return the seconds of one call.

    Args:
        subject: The algorithm, or the schedule of all ranks.
        nbytes: Bytes of the message, all blocks together.
        machine: Where it runs.
        placement: What a placement-aware algorithm sees.
        blocks: Bytes of each block, where they differ.
        most: Steps that are worth simulating; None: all.
        limit: Seconds that are worth knowing; what takes longer may be said to take for ever.

    Returns:
        Seconds.

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
        TooLarge: It has more steps than ``most``.

    Example:
        >>> machine = cost.Machine.described(topology.cluster(2))
        >>> cost.predict(pycoll.algorithms.get("ring"), 8, machine) > 0
        True
    """
    lengths = None if blocks is None else tuple(blocks)
    return _predict(subject, nbytes, machine, placement, lengths, most, limit)


def least(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement = FLAT
) -> float:
    """Return seconds that a call takes at least: the own work of the busiest of a few ranks."""
    _, sides = sample(algorithm, machine.size, placement, machine.hosts)
    rates = machine.rates
    scale = min(1.0, rates.memory)
    copy, fold, most = rates.copy * scale * _beside(machine), rates.fold * scale, 0.0
    for rank, side in sides.items():
        seconds = 0.0
        for step in side.steps:
            n = step.chunks.nchunks * nbytes / side.nchunks
            sends, folds = step.kind is Kind.SEND, step.kind is Kind.RECV_REDUCE
            # A send costs no more than its message where it joins what makes its value.
            seconds += 0.0 if sends else n * copy
            for peer in step.peers if sends else step.senders(rank):
                each, of_byte = machine.toll(rank, peer) if sends else machine.toll(peer, rank)
                seconds += (n * fold if folds else 0.0) + each + n * of_byte
        most = max(most, seconds)
    return most


@lru_cache(maxsize=4096)
def _predict(
    subject: Algorithm | Schedule,
    nbytes: int,
    machine: Machine,
    placement: Placement,
    blocks: tuple[int, ...] | None,
    most: int | None,
    limit: float,
) -> float:
    if machine.topology is None and blocks is None:
        work = work_of(subject, machine.size, placement, machine.hosts, most)
        try:
            return _seconds(work, nbytes, machine, None, limit)
        except Stalled:  # those few ranks looked like all, but are not
            pass
    work = whole_work_of(subject, machine.size, placement)
    try:
        return _seconds(work, nbytes, machine, blocks, limit)
    except Stalled:
        return math.inf  # a deadlock; the verifier says whose


def _seconds(
    work: Work,
    nbytes: int,
    machine: Machine,
    blocks: tuple[int, ...] | None,
    limit: float = math.inf,
) -> float:
    lengths = lengths_of(work.nchunks, nbytes, blocks)
    longest = max(lengths, default=0.0)
    tile = max(CHUNK_UNIT, machine.slot_bytes // work.widest // CHUNK_UNIT * CHUNK_UNIT)
    tiles = max(1, math.ceil(longest / tile))
    entry = machine.rates.entry
    if tiles <= TILES:
        return entry + simulate(_scene(work, nbytes, machine, lengths, tiles, 1 / tiles, limit))
    share = tile / longest

    def run(n: int) -> Scene:
        return _scene(work, nbytes, machine, lengths, n, share, limit)

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
    further = max(further, run(1).busiest())
    return entry + first + (longest / tile - some) * further


def lengths_of(nchunks: int, nbytes: int, blocks: tuple[int, ...] | None = None) -> list[float]:
    """Return the bytes of every chunk."""
    if blocks is None:
        return [nbytes / nchunks] * nchunks
    parts = max(1, nchunks // len(blocks))
    return [block / parts for block in blocks for _ in range(parts)]


def _scene(
    work: Work,
    nbytes: int,
    machine: Machine,
    lengths: Sequence[float],
    tiles: int,
    share: float,
    limit: float,
) -> Scene:
    """Return ``tiles`` tiles, each the ``share`` of every chunk."""
    # A rank that stands for all ranks of its host stands for their turns on its core, too.
    alone = work.ranks == 1 and machine.turns > 1
    pace = machine.turns if alone else 1.0
    price = _Price(work, nbytes, machine, pace)
    sizes = [moved(o, lengths) * share for o in work.operations]
    hosts = machine.hosts or (0,) * machine.size
    tolls = [machine.toll(work.sender(e), e[0]) for e in work.edges]
    return Scene(
        work,
        [price.of(o, n, tolls) for o, n in zip(work.operations, sizes, strict=True)],
        sizes,
        _ways(work, machine, hosts, machine.rates.switch * pace if alone else 0.0),
        LINES if nbytes <= INLINE_BYTES else machine.slots,
        tiles,
        hosts[: work.ranks],
        work.ranks if alone else max(1, machine.cores),
        machine.rates.switch,
        STRIPE_BYTES,
        limit,
    )


def moved(operation: Operation, lengths: Sequence[float]) -> float:
    """Return the bytes that an operation sends to each of its destinations."""
    first, n = operation.chunks.chunk, operation.chunks.nchunks
    if first < 0:  # scratch: which chunks lie there only the sender knows
        return sum(lengths) / len(lengths) * n
    return sum(lengths[first : first + n])


def _beside(machine: Machine) -> float:
    """Return times that a copy costs where some of a rank's peers share its core."""
    share = (machine.turns - 1) / max(1, machine.crew - 1)
    return 1 - share * (1 - machine.rates.beside)


class _Price:
    """What operations cost the rank that does them."""

    def __init__(self, work: Work, nbytes: int, machine: Machine, pace: float) -> None:
        rates, turns = machine.rates, machine.turns
        self._pace = pace
        edges = max(work.peers(rank) for rank in range(work.ranks)) if work.ranks else 0
        others = min(max(0, edges - 1), SPREAD_EDGES)
        crowded = nbytes * turns > CACHE_BYTES
        from_memory = nbytes * turns >= MEMORY_BYTES
        scale = rates.memory if from_memory else 1.0
        self._copy = rates.copy * scale * _beside(machine)
        self._copy *= 1 + rates.spread * others * crowded
        self._fold = rates.fold * scale
        self._store = rates.store * scale
        self._fused = rates.fused if from_memory else 0.0

    def of(self, o: Operation, nbytes: float, tolls: Sequence[tuple[float, float]]) -> float:
        """Return the seconds of an operation on so many bytes; every edge has its toll."""
        partial = -(-(o.operands - 1) // (MAX_SOURCES - 1)) - 1  # folds that are folded on
        seconds = nbytes * (
            self._copy
            + (o.operands - 1 + max(0, partial)) * self._fold
            + (o.stores - 1 + max(0, partial)) * self._store
            + (self._fused if o.operands > 1 and o.destinations else 0.0)
        )
        for e in (*o.sources, *o.destinations):
            message, of_byte = tolls[e]
            seconds += message + nbytes * of_byte
        return seconds * self._pace


def _ways(work: Work, machine: Machine, hosts: Sequence[int], wake: float) -> list[EdgeRoutes]:
    if machine.topology is not None:
        return _described(work, machine)
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
            ways.append(near)
            continue
        # The sender may be one that is not simulated: its host is like the one that is.
        out = frm if frm in seats else to
        into = bandwidth / (1 + incast * max(0, senders[edge[0]] - turns))
        lane = SimRoute(max(latency, wake), ((2 * out, bandwidth), (2 * to + 1, into)))
        ways.append(EdgeRoutes(lane.latency, (lane,)))
    return ways


def _described(work: Work, machine: Machine) -> list[EdgeRoutes]:
    topology, rates = machine.topology, machine.rates
    assert topology is not None
    numbers: dict[object, int] = {}
    ways = []
    for edge in work.edges:
        lanes = []
        for route in topology.routes(work.sender(edge), edge[0], machine.flows):
            links = [(numbers.setdefault(x, len(numbers)), x.bandwidth) for x in route.links]
            lanes.append(SimRoute(rates.latency + route.latency, tuple(links), route.share))
        ways.append(EdgeRoutes(min(lane.latency for lane in lanes), tuple(lanes)))
    return ways
