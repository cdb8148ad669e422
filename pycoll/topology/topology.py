"""Topology: nodes, what joins them, where ranks run, and the way between two of them."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pycoll.errors import UsageError
from pycoll.schedule import Level, Placement
from pycoll.topology.model import Link, Node, Place, Switch, within


@dataclass(frozen=True)
class Topology:
    """A described cluster. ``links`` join switches and parts of nodes, as ``node/part``."""

    nodes: tuple[Node, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    ranks: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        _unique("node or switch", [n.name for n in self.nodes] + [s.name for s in self.switches])
        for node in self.nodes:
            _unique(f"part of node {node.name}", node.parts())
            _ends(f"node {node.name}", node.links, set(node.parts()))
        known = {s.name for s in self.switches}
        known.update(within(node.name, part) for node in self.nodes for part in node.parts())
        _ends("topology", self.links, known)
        for rank, place in enumerate(self.ranks):
            found = self._nodes.get(place.node)
            if found is None:
                raise UsageError(
                    f"rank {rank} is on node {place.node!r}, want one of {_listed(self._nodes)}"
                )
            seats = [part.name for kind in (found.sockets, found.devices) for part in kind]
            if place.at not in seats:
                raise UsageError(
                    f"rank {rank} is at {place.at!r} of node {place.node}, want one of "
                    f"{_listed(seats)}"
                )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _links_from(self) -> dict[str, list[Link]]:
        links: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            links[link.a].append(link)
            links[link.b].append(link.reverse())
        for node in self.nodes:
            for inner in node.links:
                a, b = within(node.name, inner.a), within(node.name, inner.b)
                if a != b:
                    links[a].append(replace(inner, a=a, b=b))
                    links[b].append(replace(inner, a=b, b=a))
        return links

    @cached_property
    def _memories(self) -> dict[str, Link]:
        return {
            within(node.name, link.a): replace(
                link, a=within(node.name, link.a), b=within(node.name, link.a)
            )
            for node in self.nodes
            for link in node.links
            if link.a == link.b
        }

    @cached_property
    def _ways(self) -> dict[str, dict[str, Link]]:
        return {}

    def path(self, source: int, destination: int) -> tuple[Link, ...]:
        """Return the links that a message crosses, each in the direction of travel.

        Equal links of two paths are one resource that both share. Within a node the last link is
        the memory of the receiver's socket; a rank has no link to itself.

        Raises:
            UsageError: There is no such rank, or no way between the two.
        """
        for rank in (source, destination):
            if not 0 <= rank < self.size:
                raise UsageError(f"path of rank {rank}, want 0 to {self.size - 1}")
        if source == destination:
            return ()
        here, there = self.ranks[source], self.ranks[destination]
        start, end = within(here.node, here.at), within(there.node, there.at)
        if start not in self._ways:
            self._ways[start] = _shortest(start, self._links_from)
        last = self._ways[start]
        links: list[Link] = []
        while end != start:
            if end not in last:
                raise UsageError(
                    f"no link leads from rank {source} ({start}) to rank {destination} "
                    f"({within(there.node, there.at)})"
                )
            links.append(last[end])
            end = last[end].a
        links.reverse()
        memory = self._memories.get(within(there.node, there.at))
        if here.node == there.node and memory is not None:
            links.append(memory)
        return tuple(links)

    def latency(self, source: int, destination: int) -> float:
        """Return the seconds that the first byte takes."""
        return sum(link.latency for link in self.path(source, destination))

    def bandwidth(self, source: int, destination: int) -> float:
        """Return the bytes per second of the narrowest link, when nobody else uses it."""
        widths = (link.bandwidth for link in self.path(source, destination))
        return min(widths, default=float("inf"))

    def placement(self) -> Placement:
        """Return what an algorithm may know: the groups of ranks, innermost first."""
        nodes = [place.node for place in self.ranks]
        sockets = [(place.node, self._socket(place)) for place in self.ranks]
        racks = [(self._nodes[n].rack, "" if self._nodes[n].rack else n) for n in nodes]
        rows = (("socket", sockets), ("node", nodes), ("rack", racks))
        return Placement.of(*(Level(name, _numbers(row)) for name, row in rows))

    def _socket(self, place: Place) -> str | None:
        node = self._nodes[place.node]
        devices = {device.name: device.socket for device in node.devices}
        return devices.get(place.at, place.at)


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


def _numbers(row: Sequence[object]) -> tuple[int, ...]:
    seen: dict[object, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in row)


def _unique(what: str, names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1 or not name or "/" in name:
            fault = "occurs twice" if times > 1 else "is no name: want text without '/'"
            raise UsageError(f"{what} {name!r} {fault}")


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
