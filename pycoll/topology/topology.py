"""Topology: nodes, what joins them, where ranks run, and the way between two of them."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pycoll.arguments import integer, require_fields
from pycoll.errors import UsageError, counted, quoted
from pycoll.schedule import Level, Placement
from pycoll.topology.likeness import Likeness
from pycoll.topology.model import Link, Nic, Node, Place, Switch, within
from pycoll.topology.routing import Route, Wiring, shared, together

#: The most queue pairs of two rails: each way is looked for by itself.
MOST_FLOWS = 1 << 16
#: Of levels that split the ranks alike only the first is told.
TOLD = ("node", "rack", "leaf", "socket")


class Exit(NamedTuple):
    """A rail that a rank uses."""

    nic: Nic
    links: tuple[Link, ...]  #: from the rank's seat to it
    back: tuple[Link, ...]  #: from it to the rank's seat


@dataclass(frozen=True)
class Topology:
    """A described cluster. ``links`` join switches and parts of nodes, as ``node/part``."""

    nodes: tuple[Node, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    ranks: tuple[Place, ...] = ()

    def __repr__(self) -> str:
        nodes, ranks = counted(len(self.nodes), "node"), counted(len(self.ranks), "rank")
        return f"<topology.Topology of {nodes} and {ranks}; topology.tree() draws it>"

    def __post_init__(self) -> None:
        require_fields(self)
        _unique("node or switch", [n.name for n in self.nodes] + [s.name for s in self.switches])
        for node in self.nodes:
            _unique(f"part of node {node.name}", node.parts())
            _ends(f"node {node.name}", node.links, set(node.parts()))
        known = {s.name for s in self.switches}
        known.update(within(node.name, part) for node in self.nodes for part in node.parts())
        _ends("topology", self.links, known)
        seats_of = {
            node.name: {part.name for kind in (node.sockets, node.devices) for part in kind}
            for node in self.nodes
        }
        for rank, place in enumerate(self.ranks):
            found = self._nodes.get(place.node)
            if found is None:
                raise UsageError(
                    f"rank {rank} is on node {quoted(place.node)}, want one of "
                    f"{_listed(self._nodes)}"
                )
            seats = seats_of[place.node]
            if place.at not in seats:
                raise UsageError(
                    f"rank {rank} is at {place.at!r} of node {place.node}, want one of "
                    f"{_listed(seats)}"
                )
            for name in place.rails:
                if name not in (nic.name for nic in found.nics if nic.is_rail):
                    rails = _listed(nic.name for nic in found.nics if nic.is_rail)
                    raise UsageError(
                        f"rank {rank} uses rail {name!r} of node {place.node}, want some of {rails}"
                    )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Of a large cluster it takes long, and is asked for again and again.
        return hash((len(self.nodes), self.switches, len(self.links), self.ranks))

    @cached_property
    def uniform(self) -> bool:
        """Whether all nodes have the same parts, ports to leaves, and ranks at the same seats."""
        first = self.nodes[0] if self.nodes else None
        seats: dict[str, list[tuple[str, tuple[str, ...]]]] = {n.name: [] for n in self.nodes}
        for place in self.ranks:
            seats[place.node].append((place.at, place.rails))
        ports: dict[str, list[tuple[str, float, float]]] = {n.name: [] for n in self.nodes}
        for link in self.links:
            for end in (link.a, link.b):
                node, inner, part = end.partition("/")
                if inner:
                    ports[node].append((part, link.latency, link.bandwidth))
        return first is not None and all(
            (n.sockets, n.devices, n.nics, n.pci, n.links)
            == (first.sockets, first.devices, first.nics, first.pci, first.links)
            and seats[n.name] == seats[first.name]
            and sorted(ports[n.name]) == sorted(ports[first.name])
            for n in self.nodes
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def _node(self, what: str, name: str) -> Node:
        """Return a node by its name; UsageError where there is none."""
        found = self._nodes.get(name) if isinstance(name, str) else None
        if found is None:
            raise UsageError(f"{what} of node {quoted(name)}, want one of {_listed(self._nodes)}")
        return found

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _links_from(self) -> dict[str, list[Link]]:
        """Links from everything to everything, for the shortest way of all."""
        links: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            links[link.a].append(link)
            links[link.b].append(link.reverse())
        for node in self.nodes:
            for end, inner in self._inside(node.name).items():
                links[end] += inner
        return links

    def _inside(self, name: str) -> dict[str, list[Link]]:
        """Return the links from each part of a node to others of it."""
        found = self._insides.get(name)
        if found is None:
            found = self._insides[name] = defaultdict(list)
            for inner in self._nodes[name].links:
                a, b = within(name, inner.a), within(name, inner.b)
                if a != b:
                    found[a].append(replace(inner, a=a, b=b))
                    found[b].append(replace(inner, a=b, b=a))
        return found

    @cached_property
    def _insides(self) -> dict[str, dict[str, list[Link]]]:
        return {}

    def _memory(self, place: Place) -> Link | None:
        """Return the memory of a rank's seat."""
        seat = within(place.node, place.at)
        return next(
            (
                replace(link, a=seat, b=seat)
                for link in self._nodes[place.node].links
                if link.a == link.b == place.at
            ),
            None,
        )

    @cached_property
    def _ways(self) -> dict[str, dict[str, Link]]:
        return {}

    @cached_property
    def wiring(self) -> Wiring:
        """The switches, and who is connected to them."""
        return Wiring(self.links, (switch.name for switch in self.switches))

    @cached_property
    def likeness(self) -> Likeness:
        """Ranks whose ways are equal."""
        equal = self.uniform and self.wiring.even
        return Likeness(self.ranks, self._leaves, self.routes, equal)

    @cached_property
    def _routes(self) -> dict[tuple[int, int, int], tuple[Route, ...]]:
        return {}

    def rails(self, node: str) -> tuple[Nic, ...]:
        """Return the NICs of a node by which RDMA can go, in order: rail 0, rail 1 and so on.

        Args:
            node: Name of the node.

        Returns:
            The NICs.

        Raises:
            UsageError: There is no such node.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> [nic.name for nic in pods.rails("node0")]
            ['nic0', 'nic1']
        """
        return tuple(nic for nic in self._node("rails", node).nics if nic.is_rail)

    def leaf(self, node: str, nic: str) -> str | None:
        """Return the switch that a NIC is connected to.

        Args:
            node: Name of the node.
            nic: Name of the NIC.

        Returns:
            Name of the switch; None where nobody knows.

        Raises:
            UsageError: There is no such node, or it has no such NIC.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> pods.leaf("node0", "nic1")
            'leaf1'
        """
        names = [found.name for found in self._node("leaf", node).nics]
        if not isinstance(nic, str) or nic not in names:
            raise UsageError(
                f"leaf of nic {quoted(nic)} of node {node}, want one of {_listed(names)}"
            )
        return self.wiring.leaf(within(node, nic))

    def routes(self, source: int, destination: int, flows: int = 1) -> tuple[Route, ...]:
        """Return all the ways that messages between two ranks take.

        RDMA goes by all rails that the two ranks use: the first of one with the first of the
        other, and so on; whoever has fewer uses them in turn. A rank uses the rails that its
        Place names, else those near to it: below the PCI bridge of its device, or at its socket,
        or all of its node. Long messages are cut over the routes by their speeds; a route of less
        than a sixteenth of the best one's is not used. Within a node, and where no rail leads
        from one to the other, there is one route, of least latency: TCP knows one network.

        Args:
            source: Rank that sends.
            destination: Rank that receives.
            flows: Queue pairs of each pair of rails; each has its own hash, by which switches
                spread flows over equal ways. Those that go by the same links count once.

        Returns:
            The routes.

        Raises:
            UsageError: There is no such rank, or no way between the two.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> [route.rdma for route in pods.routes(0, 1)]
            [True, True]
        """
        key = (
            integer("source", source, 0, self.size - 1),
            integer("destination", destination, 0, self.size - 1),
            integer("flows", flows, 1, MOST_FLOWS),
        )
        if key not in self._routes:
            here, there = self.ranks[source].node, self.ranks[destination].node
            ways = self._railways(*key) if here != there else []
            self._routes[key] = shared(ways) or (Route(self._shortest(source, destination)),)
        return self._routes[key]

    def path(self, source: int, destination: int) -> tuple[Link, ...]:
        """Return the links that a message crosses, each in the direction of travel.

        Of several routes it is that of least latency. Equal links of two paths are one resource
        that both share. Within a node the last link is the memory of the receiver's socket; a
        rank has no link to itself.

        Args:
            source: Rank that sends.
            destination: Rank that receives.

        Returns:
            The links.

        Raises:
            UsageError: There is no such rank, or no way between the two.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> [link.b for link in pods.path(0, 1)][-2:]
            ['node1/nic0', 'node1/socket0']
        """
        return min(self.routes(source, destination), key=lambda route: route.latency).links

    def latency(self, source: int, destination: int) -> float:
        """Return the seconds that the first byte takes.

        Args:
            source: Rank that sends.
            destination: Rank that receives.

        Returns:
            Seconds.

        Raises:
            UsageError: There is no such rank, or no way between the two.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> pods.latency(0, 1) < pods.latency(0, 3)
            True
        """
        return sum(link.latency for link in self.path(source, destination))

    def bandwidth(self, source: int, destination: int, flows: int = 1) -> float:
        """Return the bytes per second of a long message, when nobody else uses the links.

        It is the sum over the routes of their narrowest links, unless they share one.

        Args:
            source: Rank that sends.
            destination: Rank that receives.
            flows: As in `routes`.

        Returns:
            Bytes per second.

        Raises:
            UsageError: There is no such rank, or no way between the two.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> pods.bandwidth(0, 1) == 2 * topology.NDR.bandwidth
            True
        """
        return together(self.routes(source, destination, flows))

    def hops(self, source: int, destination: int) -> int:
        """Return how many switches a message passes: 0 in a node, 1 by a leaf, 3 by a spine.

        Args:
            source: Rank that sends.
            destination: Rank that receives.

        Returns:
            Their number.

        Raises:
            UsageError: There is no such rank, or no way between the two.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> pods.hops(0, 1), pods.hops(0, 3)
            (1, 3)
        """
        return sum(link.b in self.wiring.switches for link in self.path(source, destination))

    def _railways(self, source: int, destination: int, flows: int) -> list[tuple[Link, ...]]:
        """Return the links of every pair of rails and every flow, each way once."""
        mine, yours = self._exits(source), self._exits(destination)
        here, there = self.ranks[source].node, self.ranks[destination].node
        found: list[tuple[Link, ...]] = []
        for i in range(max(len(mine), len(yours)) if mine and yours else 0):
            out, into = mine[i % len(mine)], yours[i % len(yours)]
            ends = within(here, out.nic.name), within(there, into.nic.name)
            flow = f"{source} to {destination}, {i}"
            between = [self.wiring.way(*ends, f"{flow}.{n}") for n in range(flows)]
            known = between if flows == 1 else dict.fromkeys(between)
            found += [(*out.links, *way, *into.back) for way in known if way is not None]
        return found

    def _exits(self, rank: int) -> list[Exit]:
        """Return what a rank may send by."""
        place = self.ranks[rank]
        key = place.node, place.at, place.rails
        if key not in self._known_exits:
            self._known_exits[key] = self._exits_of(place)
        return self._known_exits[key]

    @cached_property
    def _known_exits(self) -> dict[object, list[Exit]]:
        return {}

    def _exits_of(self, place: Place) -> list[Exit]:
        """Return the rails that a rank there uses: those named, or those near, or else all."""
        node, seat = self._nodes[place.node], within(place.node, place.at)
        last = _shortest(seat, self._inside(node.name))
        found = []
        for nic in self.rails(node.name):
            links = _trace(last, seat, within(node.name, nic.name))
            if links is not None and (nic.name in place.rails or not place.rails):
                back = tuple(link.reverse() for link in reversed(links))
                found.append(Exit(nic, links, back))
        if place.rails:
            return found
        sockets = {within(node.name, numa.name) for numa in node.sockets}
        beside = [e for e in found if not sockets & {seat, *(link.b for link in e.links)}]
        return beside or [e for e in found if e.nic.socket == self._socket(place)] or found

    def _shortest(self, source: int, destination: int) -> tuple[Link, ...]:
        if source == destination:
            return ()
        here, there = self.ranks[source], self.ranks[destination]
        start, end = within(here.node, here.at), within(there.node, there.at)
        if (start, end) not in self._paths:
            links = self._between(start, end, here.node == there.node)
            if links is None:
                raise UsageError(
                    f"no link leads from rank {source} ({start}) to rank {destination} ({end})"
                )
            memory = self._memory(there) if here.node == there.node else None
            self._paths[start, end] = links if memory is None else (*links, memory)
        return self._paths[start, end]

    @cached_property
    def _paths(self) -> dict[tuple[str, str], tuple[Link, ...]]:
        return {}

    def _between(self, start: str, end: str, near: bool) -> tuple[Link, ...] | None:
        """Return the links between two seats, without their memory; None where none lead there."""
        links = self._within_node(start.partition("/")[0], start, end) if near else None
        if links is None:
            if start not in self._ways:
                self._ways[start] = _shortest(start, self._links_from)
            links = _trace(self._ways[start], start, end)
        return links

    def _within_node(self, node: str, start: str, end: str) -> tuple[Link, ...] | None:
        """Return the shortest way inside a node; None where one by a switch may be shorter."""
        inside = self._inside(node)
        last = _shortest(start, inside)
        links = _trace(last, start, end)
        if links is None:
            return None
        nics = [within(node, nic.name) for nic in self._nodes[node].nics]
        around = 2 * self._least_latency  # to a switch and back, and the ways to a NIC and from one
        for seat, ways in ((start, last), (end, _shortest(end, inside))):
            found = (_trace(ways, seat, nic) for nic in nics)
            around += min((_latency(way) for way in found if way is not None), default=math.inf)
        return links if _latency(links) < around else None

    @cached_property
    def _least_latency(self) -> float:
        return min((link.latency for link in self.links), default=math.inf)

    def placement(self) -> Placement:
        """Return what an algorithm may know: the groups of ranks, innermost first.

        A leaf's group are the nodes whose NICs are connected to the same switches: in a fabric
        with a leaf for each rail, those of a pod. Of levels that split the ranks alike one is
        told: the rack, where all of a rack have one leaf.

        Returns:
            The Placement, as `ScheduleBuilder.placement` and `pycoll.verify` take it.

        Example:
            >>> [level.name for level in topology.cluster(2, 2).placement().levels]
            ['node']
        """
        nodes = [place.node for place in self.ranks]
        used = dict.fromkeys(nodes)
        devices = {n: {d.name: d.socket for d in self._nodes[n].devices} for n in used}
        rack_of = {n: (self._nodes[n].rack, "" if self._nodes[n].rack else n) for n in used}
        leaves_of = {n: self.leaves(n) or n for n in used}
        sockets = [
            (place.node, devices[place.node].get(place.at, place.at)) for place in self.ranks
        ]
        racks, leaves = [rack_of[n] for n in nodes], [leaves_of[n] for n in nodes]
        rows = {
            name: Placement.of(Level(name, _numbers(row)))
            for name, row in (
                ("socket", sockets),
                ("node", nodes),
                ("leaf", leaves),
                ("rack", racks),
            )
        }
        told = {rows[name].levels[0].groups: name for name in reversed(TOLD) if rows[name].levels}
        return Placement.of(
            *(level for row in rows.values() for level in row.levels if level.name in told.values())
        )

    def leaves(self, node: str) -> frozenset[str]:
        """Return the switches that the NICs of a node are connected to.

        Args:
            node: Name of the node.

        Returns:
            Their names.

        Raises:
            UsageError: There is no such node.

        Example:
            >>> pods = topology.fabric(4, rails=2, leaves=4)
            >>> sorted(pods.leaves("node0"))
            ['leaf0', 'leaf1']
        """
        self._node("leaves", node)
        return frozenset(name for name in self._leaves(node) if name is not None)

    def _leaves(self, node: str) -> tuple[str | None, ...]:
        """Return the switch of each NIC of a node."""
        found = self._known_leaves.get(node)
        if found is None:
            nics, wiring = self._nodes[node].nics, self.wiring
            found = tuple(wiring.leaf(within(node, nic.name)) for nic in nics)
            self._known_leaves[node] = found
        return found

    @cached_property
    def _known_leaves(self) -> dict[str, tuple[str | None, ...]]:
        return {}

    def _socket(self, place: Place) -> str | None:
        node = self._nodes[place.node]
        devices = {device.name: device.socket for device in node.devices}
        return devices.get(place.at, place.at)


def _latency(links: Iterable[Link]) -> float:
    return sum(link.latency for link in links)


def _shortest(start: str, links_from: dict[str, list[Link]]) -> dict[str, Link]:
    """Return, per vertex, the last link of the way there: least latency, then fewest links."""
    last: dict[str, Link] = {}
    done: set[str] = set()
    queue: list[tuple[float, int, float, int, str, Link | None]] = [(0, 0, 0, 0, start, None)]
    pushed = 0  # of equals the first listed wins
    while queue:
        latency, hops, _, _, vertex, link = heapq.heappop(queue)
        if vertex in done:
            continue
        done.add(vertex)
        if link is not None:
            last[vertex] = link
        for after in links_from.get(vertex, ()):
            if after.b not in done:
                pushed += 1
                item = (latency + after.latency, hops + 1, -after.bandwidth, pushed, after.b, after)
                heapq.heappush(queue, item)
    return last


def _trace(last: dict[str, Link], start: str, end: str) -> tuple[Link, ...] | None:
    """Return the links to ``end``, given the last one of every way; None where there is no way."""
    links: list[Link] = []
    while end != start:
        if end not in last:
            return None
        links.append(last[end])
        end = last[end].a
    return tuple(reversed(links))


def _numbers(row: Sequence[object]) -> tuple[int, ...]:
    seen: dict[object, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in row)


def _unique(what: str, names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1 or not name or "/" in name:
            fault = "occurs twice" if times > 1 else "is no name: want text without '/'"
            raise UsageError(f"{what} {quoted(name)} {fault}")


def _ends(where: str, links: Iterable[Link], known: set[str]) -> None:
    for link in links:
        for end in (link.a, link.b):
            if end not in known:
                raise UsageError(
                    f"{where}: link {link.a} to {link.b} ends at {end!r}, want one of "
                    f"{_listed(known)}"
                )


def _listed(names: Iterable[str]) -> str:
    some = sorted(names)
    shown: Iterator[str] = iter(some[:8])
    return ", ".join(shown) + (", ..." if len(some) > 8 else "") or "none"
