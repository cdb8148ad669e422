"""Traffic: what one call sends over each link of a described cluster, and which link has most.

Where the ranks of one node stand for all, their messages are those of every node: a node's own
links carry what its ranks send and receive, and a leaf gets from the spines what is sent to all
nodes below it. A hash deals that to the leaf's links, so what the busiest carries is said about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pycoll.cost.extrapolation import smaller
from pycoll.cost.machine import Machine
from pycoll.cost.outline import Outline, outline
from pycoll.cost.timing import lengths_of, moved, whole_ranks
from pycoll.cost.work import Work, whole_work_of
from pycoll.schedule import Algorithm
from pycoll.schedule.placement import Placement
from pycoll.topology import Link
from pycoll.topology.routing import Route

#: Nodes below a leaf whose messages are looked at.
SOME = 64


class Load(NamedTuple):
    """What one call sends over a link, one way."""

    link: Link
    nbytes: float
    about: bool = False  #: by the number of flows that a hash deals to the link and others

    @property
    def seconds(self) -> float:
        """Return the least time that the link needs for it."""
        return self.nbytes / self.link.bandwidth


def traffic(work: Work, nbytes: int, machine: Machine) -> list[Load]:
    """Return the load of every link that one call of ``nbytes`` uses.

    Messages count as if all were cut over their routes; short ones go by one of them, and about
    as many by each.
    """
    if machine.topology is None:
        return []
    lengths = lengths_of(work.nchunks, nbytes)
    sent = [0.0] * len(work.edges)
    for operation in work.operations:
        for edge in operation.destinations:
            sent[edge] += moved(operation, lengths)
    senders = [work.sender(edge) for edge in work.edges]
    loads: dict[Link, float] = {}
    for (to, _, _), sender, total in zip(work.edges, senders, sent, strict=True):
        for route in machine.routes(sender, to):
            for link in route.links:
                loads[link] = loads.get(link, 0.0) + total * route.share
    return [Load(link, total) for link, total in loads.items()]


def busiest_of(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement
) -> Load | None:
    """Return the link that needs the most time in one call; None where that is not known.

    It is known where all ranks are simulated, or some that stand for all; not where seconds are
    extrapolated from fewer ranks.
    """
    if machine.topology is None:
        return None
    if machine.size > whole_ranks(machine):
        found = outline(algorithm, machine.size, placement, machine.hosts)
        if found.ranks and machine.topology.uniform:
            return _most(_folded_traffic(found, nbytes, machine))
        if smaller(machine) is not None:
            return None
    return busiest(whole_work_of(algorithm, machine.size, placement), nbytes, machine)


def busiest(work: Work, nbytes: int, machine: Machine) -> Load | None:
    """Return the link that needs the most time; of equals rather one outside of the nodes."""
    return _most(traffic(work, nbytes, machine))


def _most(loads: Iterable[Load]) -> Load | None:
    def busy(load: Load) -> tuple[float, bool]:
        return float(f"{load.seconds:.6g}"), "/" not in load.link.b

    return max(loads, key=busy, default=None)


def _folded_traffic(found: Outline, nbytes: int, machine: Machine) -> Iterator[Load]:
    """Yield the loads of one node's links, and of those from the spines to its leaves."""
    below = _below(found, machine)
    some = below[:: -(-len(below) // SOME)]
    carried: dict[int, _Carried] = {}  # by the route's identity: many pairs of ranks have one
    for (to, distance, _), total in zip(found.edges, _sent(found, nbytes), strict=True):
        for first in some:
            source = found.relation.sender(first + to, distance)
            for route in machine.like_routes(source, first + to):
                carried.setdefault(id(route), _Carried(route)).add(total * route.share)
    own: dict[object, tuple[Link, float]] = {}
    down: dict[str, _Carried] = {}  # by leaf: what comes from spines
    for one in carried.values():
        for link in one.route.links:
            if not link.inner:
                key = tuple(end.partition("/")[2] for end in (link.a, link.b))
                example, before = own.get(key, (link, 0.0))
                own[key] = example, before + one.nbytes
        if one.route.climbs:
            leaf = [link.b for link in one.route.links if link.inner][-1]
            down.setdefault(leaf, _Carried(one.route)).join(one)
    alike = machine.crew // found.ranks  # of those that are looked at, on each node
    for link, total in own.values():
        yield Load(link, total * alike / len(some))
    for leaf, flows in down.items():
        yield from _dealt(leaf, flows, len(below) / len(some), machine)


@dataclass(slots=True)
class _Carried:
    """Flows that go by one route, or come to one leaf."""

    route: Route
    nbytes: float = 0.0
    squares: float = 0.0  #: sum of the squares of each flow's bytes
    largest: float = 0.0

    def add(self, nbytes: float) -> None:
        self.nbytes += nbytes
        self.squares += nbytes * nbytes
        if nbytes > self.largest:
            self.largest = nbytes

    def join(self, other: _Carried) -> None:
        self.nbytes += other.nbytes
        self.squares += other.squares
        self.largest = max(self.largest, other.largest)


def _below(found: Outline, machine: Machine) -> list[int]:
    """Return the first of each group of ranks that are alike, below the leaves of rank 0."""
    firsts = range(0, machine.size, found.ranks)
    if machine.crew != found.ranks:
        return list(firsts)
    return [first for first in firsts if machine.outlook(first) == machine.outlook(0)]


def _sent(found: Outline, nbytes: int) -> list[float]:
    """Return the bytes that one call sends over each edge."""
    chunk, sent = nbytes / found.nchunks, [0.0] * len(found.edges)
    for turn, n in (run for rank in found.runs for runs in rank for run in runs):
        for number in turn:
            operation = found.operations[number]
            for edge in operation.destinations:
                sent[edge] += n * moved(operation, chunk)
    return sent


def _dealt(leaf: str, flows: _Carried, times: float, machine: Machine) -> Iterator[Load]:
    """Yield what each of a leaf's links carries if a hash deals flows to them, unevenly."""
    assert machine.topology is not None
    wiring = machine.topology.wiring
    links = wiring.up(leaf)
    weights = [1.0 if link.weight is None else link.weight for link in links]
    total = times * flows.nbytes
    for link, weight in zip(links, weights, strict=True):
        share = weight / sum(weights)
        # As in `Wiring.sharing`, the busiest is so much above the mean; here of all links.
        above = math.sqrt(times * flows.squares * share * math.log(wiring.inner_links))
        most = min(total, max(flows.largest, total * share + above))
        yield Load(link.reverse(), most if len(links) > 1 else total, about=len(links) > 1)
