"""Folding: what messages cross in a described cluster where the ranks of one node stand for all.

All nodes do the same at the same time, so a node's own links carry what its ranks send and what
they receive. What lies between leaves and spines is shared with other nodes' flows: each message
has its part of that to itself. How much that is follows from the flows that the nodes of a leaf
send up at once and from how many links there are. The hash deals them unevenly, and all wait for
those on the busiest link. Latencies are the mean over some nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pycoll.cost.machine import Machine
from pycoll.cost.simulate import EdgeRoutes, SimRoute
from pycoll.cost.work import Work
from pycoll.topology import Link
from pycoll.topology.routing import Route
from pycoll.topology.topology import outlook

#: Nodes whose ways are looked at.
SOME = 8
#: Steps of so large a part of the nodes, modulo all, come round to none before they have been all.
GOLDEN = (math.sqrt(5) - 1) / 2


class _Sight(NamedTuple):
    """What a rank sees of another: the ways between them."""

    routes: tuple[Route, ...]
    latency: float  #: of the shortest
    up: int  #: routes by links between switches


class _Sights:
    """All sights of a machine; where no hash makes them differ, each of its kind once."""

    def __init__(self, machine: Machine) -> None:
        topology = machine.topology
        assert topology is not None
        self._topology = topology
        # Of several queue pairs the hash says how many go by the same links, and count once.
        self._once = topology.uniform and topology.wiring.even and machine.flows == 1
        self._machine = machine
        self._known: dict[tuple[int, int, bool], _Sight] = {}
        self._kinds: dict[object, int] = {}
        self._kind_of: dict[int, int] = {}

    def of(self, source: int, destination: int) -> _Sight:
        """Return the ways between two ranks."""
        hosts = self._machine.hosts
        near = not hosts or hosts[source] == hosts[destination]
        key = (source, destination, near)
        if self._once:
            key = self._kind(source), self._kind(destination), near
        found = self._known.get(key)
        if found is None:
            routes = self._machine.routes(source, destination)
            up = sum(any(_is_inner(link) for link in route.links) for route in routes)
            latency = min(route.latency for route in routes)
            found = self._known[key] = _Sight(routes, latency, up)
        return found

    def _kind(self, rank: int) -> int:
        kind = self._kind_of.get(rank)
        if kind is None:
            seats, kinds = self._machine.seats, self._kinds
            of = outlook(self._topology, seats[rank] if seats else rank)
            kind = self._kind_of[rank] = kinds.setdefault(of, len(kinds))
        return kind


def folded(work: Work, machine: Machine) -> list[EdgeRoutes]:
    """Return what each edge's messages cross."""
    crew, numbers = work.ranks, dict[object, int]()
    nodes = machine.size // crew
    some = sorted({int(i * GOLDEN * nodes) % nodes for i in range(SOME)})
    sights = _Sights(machine)
    seen = [_instances(work, sights, edge, some) for edge in work.edges]
    crossing: dict[tuple[int, int], float] = {}  # distance, channel -> lanes of a node that go up
    for edge, found in zip(work.edges, seen, strict=True):
        up = sum(sight.up for sight in found)
        crossing[edge[1:]] = crossing.get(edge[1:], 0.0) + up / len(found)
    ways = []
    for number, (edge, found) in enumerate(zip(work.edges, seen, strict=True)):
        latency = sum(sight.latency for sight in found) / len(found)
        # Of the instances, one of those with the longest way: a collective waits for the slowest.
        longest = max(found, key=lambda sight: sight.latency)
        lanes = []
        for lane, route in enumerate(longest.routes):
            later = machine.rates.latency + latency + route.latency - longest.latency
            links = _links(route, machine, crossing[edge[1:]], (number, lane), numbers)
            lanes.append(SimRoute(later, links, route.share))
        ways.append(EdgeRoutes(min(lane.latency for lane in lanes), tuple(lanes)))
    return ways


def _instances(
    work: Work, sights: _Sights, edge: tuple[int, int, int], nodes: Sequence[int]
) -> list[_Sight]:
    """Return what one edge's copies cross at some nodes; within a node all cross the same."""
    to, distance, _ = edge
    if work.sender(edge) // work.ranks == to // work.ranks:
        return [sights.of(work.sender(edge), to)]
    receivers = [node * work.ranks + to for node in nodes]
    return [sights.of(work.relation.sender(r, distance), r) for r in receivers]


def _is_inner(link: Link) -> bool:
    """Tell whether a link joins two switches."""
    return "/" not in link.a and "/" not in link.b


def _links(
    route: Route,
    machine: Machine,
    lanes: float,
    flow: tuple[int, int],
    numbers: dict[object, int],
) -> tuple[tuple[int, float], ...]:
    """Return what a route crosses: links of the node's own, and its part of those above."""
    assert machine.topology is not None
    wiring, ports = machine.topology.wiring, len(machine.topology.nodes[0].nics)
    found = []
    for at, link in enumerate(route.links):
        key: object = tuple(end.partition("/")[2] for end in (link.a, link.b))
        bandwidth = link.bandwidth
        if _is_inner(link):
            key = (*flow, at)
            # A leaf's links go up from it, a spine's down to a leaf: the leaf says how many flows.
            leaf = link.a if wiring.down(link.a) else link.b
            bandwidth /= wiring.sharing(leaf, lanes / ports)
        found.append((numbers.setdefault(key, len(numbers)), bandwidth))
    return tuple(found)
