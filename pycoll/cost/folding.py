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
from pycoll.topology import Link
from pycoll.topology.routing import Route

#: Nodes whose ways are looked at.
SOME = 8
#: Steps of so large a part of the nodes, modulo all, come round to none before they have been all.
GOLDEN = (math.sqrt(5) - 1) / 2


def folded(work: Work, machine: Machine) -> list[EdgeRoutes]:
    """Return what each edge's messages cross."""
    crew, numbers = work.ranks, dict[object, int]()
    nodes = machine.size // crew
    some = sorted({int(i * GOLDEN * nodes) % nodes for i in range(SOME)})
    seen = [_instances(work, machine, edge, some) for edge in work.edges]
    crossing: dict[tuple[int, int], float] = {}  # distance, channel -> lanes of a node that go up
    for edge, found in zip(work.edges, seen, strict=True):
        up = sum(any(_is_inner(x) for x in r.links) for routes in found for r in routes)
        crossing[edge[1:]] = crossing.get(edge[1:], 0.0) + up / len(found)
    ways = []
    for number, (edge, found) in enumerate(zip(work.edges, seen, strict=True)):
        latency = sum(min(r.latency for r in routes) for routes in found) / len(found)
        # Of the instances, one of those with the longest way: a collective waits for the slowest.
        routes = max(found, key=lambda routes: min(r.latency for r in routes))
        quickest = min(r.latency for r in routes)
        lanes = []
        for lane, route in enumerate(routes):
            later = machine.rates.latency + latency + route.latency - quickest
            links = _links(route, machine, crossing[edge[1:]], (number, lane), numbers)
            lanes.append(SimRoute(later, links, route.share))
        ways.append(EdgeRoutes(min(lane.latency for lane in lanes), tuple(lanes)))
    return ways


def _instances(
    work: Work, machine: Machine, edge: tuple[int, int, int], nodes: Sequence[int]
) -> list[tuple[Route, ...]]:
    """Return the ways of one edge's copies at some nodes; within a node all are the same."""
    to, distance, _ = edge
    if work.sender(edge) // work.ranks == to // work.ranks:
        return [machine.routes(work.sender(edge), to)]
    receivers = [node * work.ranks + to for node in nodes]
    return [machine.routes(work.relation.sender(r, distance), r) for r in receivers]


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
