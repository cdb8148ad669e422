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

from pycoll.cost.machine import Machine
from pycoll.cost.simulate import EdgeRoutes, SimRoute
from pycoll.cost.work import Work
from pycoll.topology.routing import Route

#: Nodes whose ways are looked at.
SOME = 8
#: Steps of so large a part of the nodes, modulo all, come round to none before they have been all.
GOLDEN = (math.sqrt(5) - 1) / 2


def folded(work: Work, machine: Machine) -> list[EdgeRoutes]:
    """Return what each edge's messages cross."""
    nodes = machine.size // work.ranks
    some = sorted({int(i * GOLDEN * nodes) % nodes for i in range(SOME)})
    seen = [_instances(work, machine, edge, some) for edge in work.edges]
    crossing: dict[tuple[int, int], float] = {}  # distance, channel -> lanes of a node that go up
    for edge, found in zip(work.edges, seen, strict=True):
        up = sum(route.climbs for routes in found for route in routes)
        crossing[edge[1:]] = crossing.get(edge[1:], 0.0) + up / len(found)
    links = _Links(machine)
    ways = []
    for number, (edge, found) in enumerate(zip(work.edges, seen, strict=True)):
        least = [min(route.latency for route in routes) for routes in found]
        latency, quickest = sum(least) / len(found), max(least)
        # Of the instances, one of those with the longest way: a collective waits for the slowest.
        lanes = []
        for lane, route in enumerate(found[least.index(quickest)]):
            later = machine.rates.latency + latency + route.latency - quickest
            crossed = links.of(route, crossing[edge[1:]], (number, lane))
            lanes.append(SimRoute(later, crossed, route.share))
        ways.append(EdgeRoutes(min(lane.latency for lane in lanes), tuple(lanes)))
    return ways


def _instances(
    work: Work, machine: Machine, edge: tuple[int, int, int], nodes: Sequence[int]
) -> list[tuple[Route, ...]]:
    """Return the ways of one edge's copies at some nodes; within a node all are the same."""
    to, distance, _ = edge
    if work.sender(edge) // work.ranks == to // work.ranks:
        return [machine.like_routes(work.sender(edge), to)]
    receivers = [node * work.ranks + to for node in nodes]
    return [machine.like_routes(work.relation.sender(r, distance), r) for r in receivers]


class _Links:
    """What routes cross: links of the one node's own, and their part of those above."""

    def __init__(self, machine: Machine) -> None:
        assert machine.topology is not None
        self._wiring = machine.topology.wiring
        self._ports = len(machine.topology.nodes[0].nics)
        self._numbers: dict[object, int] = {}
        #: of each route: per link its number and bandwidth, and the leaf of one that is shared
        self._known: dict[int, list[tuple[int, float, str]]] = {}

    def of(
        self, route: Route, lanes: float, flow: tuple[int, int]
    ) -> tuple[tuple[int, float], ...]:
        """Return the links of a route, of which so many of a node go up at once."""
        if id(route) not in self._known:
            self._known[id(route)] = self._look(route)
        found, numbers = [], self._numbers
        for at, (number, bandwidth, leaf) in enumerate(self._known[id(route)]):
            if leaf:
                number = numbers.setdefault((*flow, at), len(numbers))
                bandwidth /= self._wiring.sharing(leaf, lanes / self._ports)
            found.append((number, bandwidth))
        return tuple(found)

    def _look(self, route: Route) -> list[tuple[int, float, str]]:
        found, numbers, wiring = [], self._numbers, self._wiring
        for link in route.links:
            if link.inner:
                # A leaf's links go up from it, a spine's down to a leaf: it says how many flows.
                leaf = link.a if wiring.down(link.a) else link.b
                found.append((-1, link.bandwidth, leaf))
            else:
                key = tuple(end.partition("/")[2] for end in (link.a, link.b))
                found.append((numbers.setdefault(key, len(numbers)), link.bandwidth, ""))
        return found
