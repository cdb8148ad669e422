"""Predict: the seconds of one collective by a schedule, on a machine that need not exist."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from pycoll.cost.machine import CACHE_BYTES, MEMORY_BYTES, Machine
from pycoll.cost.simulate import Scene, Stalled, Way, simulate
from pycoll.cost.work import Operation, Work, sample, whole_work_of, work_of
from pycoll.program.isa import CHUNK_UNIT, MAX_SOURCES
from pycoll.schedule import Algorithm, Kind, Schedule
from pycoll.schedule.placement import FLAT, Placement

#: Messages of so many bytes lie in the line of their count, and so many lines an edge has.
INLINE_BYTES = 40
LINES = 32
#: Tiles that are simulated. What follows costs the same again and again.
TILES = 6
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

    Raises:
        ScheduleError: The algorithm does not serve so many ranks.
        TooLarge: It has more steps than ``most``.
    """
    lengths = None if blocks is None else tuple(blocks)
    return _predict(subject, nbytes, machine, placement, lengths, most, limit)


def least(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement = FLAT
) -> float:
    """Return seconds that a call takes at least: the own work of the busiest of a few ranks."""
    _, sides = sample(algorithm, machine.size, placement, machine.hosts)
    hosts, rates = machine.hosts or (0,) * machine.size, machine.rates
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
                seconds += n * fold if folds else 0.0
                if hosts[peer] == hosts[rank]:
                    seconds += rates.message
                else:
                    seconds += rates.network_message + n * rates.network_copy
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
    lengths = _lengths(work.nchunks, nbytes, blocks)
    longest = max(lengths, default=0.0)
    tile = max(CHUNK_UNIT, machine.slot_bytes // work.widest // CHUNK_UNIT * CHUNK_UNIT)
    tiles = max(1, math.ceil(longest / tile))
    entry = machine.rates.entry
    if tiles <= TILES:
        return entry + _run(work, nbytes, machine, lengths, tiles, 1 / tiles, limit)
    some, share = TILES // 2, tile / longest
    first = _run(work, nbytes, machine, lengths, some, share, limit)
    second = _run(work, nbytes, machine, lengths, TILES, share, limit)
    if math.inf in (first, second):
        return math.inf
    return entry + first + (longest / tile - some) * (second - first) / (TILES - some)


def _lengths(nchunks: int, nbytes: int, blocks: tuple[int, ...] | None) -> list[float]:
    if blocks is None:
        return [nbytes / nchunks] * nchunks
    parts = max(1, nchunks // len(blocks))
    return [block / parts for block in blocks for _ in range(parts)]


def _run(
    work: Work,
    nbytes: int,
    machine: Machine,
    lengths: Sequence[float],
    tiles: int,
    share: float,
    limit: float,
) -> float:
    """Simulate ``tiles`` tiles, each the ``share`` of every chunk."""
    # A rank that stands for all ranks of its host stands for their turns on its core, too.
    alone = work.ranks == 1 and machine.turns > 1
    pace = machine.turns if alone else 1.0
    price = _Price(work, nbytes, machine, pace)
    sizes = [_nbytes(o, lengths) * share for o in work.operations]
    hosts = machine.hosts or (0,) * machine.size
    network = [_by_system_calls(machine, hosts, work.sender(e), e[0]) for e in work.edges]
    scene = Scene(
        work,
        [price.of(o, n, network) for o, n in zip(work.operations, sizes, strict=True)],
        sizes,
        _ways(work, machine, hosts, machine.rates.switch * pace if alone else 0.0),
        LINES if nbytes <= INLINE_BYTES else machine.slots,
        tiles,
        hosts[: work.ranks],
        work.ranks if alone else max(1, machine.cores),
        machine.rates.switch,
        limit,
    )
    return simulate(scene)


def _nbytes(operation: Operation, lengths: Sequence[float]) -> float:
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
        self._rates = rates
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

    def of(self, o: Operation, nbytes: float, network: Sequence[bool]) -> float:
        """Return the seconds of an operation on so many bytes."""
        rates = self._rates
        partial = -(-(o.operands - 1) // (MAX_SOURCES - 1)) - 1  # folds that are folded on
        seconds = nbytes * (
            self._copy
            + (o.operands - 1 + max(0, partial)) * self._fold
            + (o.stores - 1 + max(0, partial)) * self._store
            + (self._fused if o.operands > 1 and o.destinations else 0.0)
        )
        for e in (*o.sources, *o.destinations):
            if network[e]:
                seconds += rates.network_message + nbytes * rates.network_copy
            else:
                seconds += rates.message
        return seconds * self._pace


def _by_system_calls(machine: Machine, hosts: Sequence[int], frm: int, to: int) -> bool:
    """Tell whether both ends of a message pay for sockets."""
    if machine.topology is None:
        return hosts[frm] != hosts[to]
    return any(link.kind == "ethernet" for link in machine.topology.path(frm, to))


def _ways(work: Work, machine: Machine, hosts: Sequence[int], wake: float) -> list[Way]:
    if machine.topology is not None:
        return _described(work, machine)
    rates = machine.rates
    near = Way(max(rates.latency, wake))
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
        at_once = max(0, senders[edge[0]] - turns)
        into = rates.network_bandwidth / (1 + rates.incast * at_once)
        links = ((2 * out, rates.network_bandwidth), (2 * to + 1, into))
        ways.append(Way(max(rates.network_latency, wake), links))
    return ways


def _described(work: Work, machine: Machine) -> list[Way]:
    topology, rates = machine.topology, machine.rates
    assert topology is not None
    numbers: dict[object, int] = {}
    ways = []
    for edge in work.edges:
        path = topology.path(work.sender(edge), edge[0])
        links = tuple((numbers.setdefault(link, len(numbers)), link.bandwidth) for link in path)
        ways.append(Way(rates.latency + sum(link.latency for link in path), links))
    return ways
