"""Routing: by which rails, leaves and spines the flows of two ranks go.

What is simplified: a flow keeps its way for ever, chosen by a hash of its ends. That is what
Ethernet switches do (equal-cost multipath); InfiniBand chooses by destination, and both can spread
packets adaptively, which the model does not. The hash is another one than a real switch's, so which
flows collide is an example of what happens, not a forecast. Several equal cables between two
switches are described as one link of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from pycoll.arguments import require_fields
from pycoll.topology.model import Link

#: Times that a route is slower than the best from which on the transport gives it nothing.
SLOWEST = 16


@dataclass(frozen=True)
class Route:
    """One way between two ranks."""

    links: tuple[Link, ...]  #: each in the direction of travel
    rdma: bool = False  #: by the RDMA ports at both ends
    share: float = 1.0  #: of a long message, which is cut over all routes by their speeds

    def __post_init__(self) -> None:
        require_fields(self)

    @cached_property
    def latency(self) -> float:
        """Seconds that the first byte takes."""
        return sum(link.latency for link in self.links)

    @cached_property
    def climbs(self) -> bool:
        """Whether it goes by a link between two switches."""
        return any(link.inner for link in self.links)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the narrowest link, when nobody else uses it."""
        return narrowest(self.links)


def narrowest(links: Iterable[Link]) -> float:
    """Return the bytes per second of the narrowest of some links; infinity of none."""
    return min([link.bandwidth for link in links], default=math.inf)


def together(routes: Sequence[Route]) -> float:
    """Return the bytes per second of a message that is cut over the routes.

    The sum of all, unless they share a link that is too narrow for their sum.
    """
    shares: dict[Link, float] = {}
    for route in routes:
        for link in set(route.links):
            shares[link] = shares.get(link, 0.0) + route.share
    return min((link.bandwidth / share for link, share in shares.items()), default=float("inf"))


def shared(ways: Iterable[tuple[Link, ...]]) -> tuple[Route, ...]:
    """Return RDMA routes over these links, shared by speed; without those that are far slower."""
    speeds = [(links, narrowest(links)) for links in ways]
    best = max([speed for _, speed in speeds], default=0.0)
    used = [(links, speed) for links, speed in speeds if speed * SLOWEST >= best]
    total = sum(speed for _, speed in used)
    return tuple(Route(links, True, speed / total) for links, speed in used)


class _Distances:
    """Switches by how many links they are from some, as far out as anybody has asked."""

    def __init__(self, ends: Sequence[str], between: Mapping[str, Sequence[Link]]) -> None:
        self._levels = [set(ends)]  #: the nearest first
        self._seen = set(ends)
        self._between = between

    def nearest(self, links: Sequence[Link]) -> list[Link]:
        """Return the links to those switches that are nearest; none if no way leads on."""
        for level in self._all():
            if found := [x for x in links if x.b in level]:
                return found
        return []

    def _all(self) -> Iterator[set[str]]:
        """Yield the levels; the next is found when it is asked for: it may be all of a cluster."""
        at = 0
        while self._levels[at]:
            yield self._levels[at]
            at += 1
            if at == len(self._levels):
                ahead = {x.b for a in self._levels[-1] for x in self._between.get(a, ())}
                self._levels.append(ahead - self._seen)
                self._seen |= ahead


class Wiring:
    """The switches, and the links between them and to nodes; nodes forward nothing."""

    def __init__(self, links: Iterable[Link], switches: Iterable[str]) -> None:
        self.switches = frozenset(switches)
        self._links: dict[str, list[Link]] = {}
        for link in links:
            for one in (link, link.reverse()):
                self._links.setdefault(one.a, []).append(one)
        self._up: dict[str, list[Link]] = {}
        self._down: dict[str, list[Link]] = {}
        for switch in self.switches:
            mine = self._links.get(switch, [])
            self._up[switch] = [x for x in mine if x.b in self.switches]
            self._down[switch] = [x for x in mine if x.b not in self.switches]
        self._distances: dict[tuple[str, ...], _Distances] = {}
        self._known_nearer: dict[tuple[str, tuple[str, ...]], list[Link]] = {}
        self._known_ends: dict[str, tuple[dict[str, list[Link]], tuple[str, ...]]] = {}

    @cached_property
    def even(self) -> bool:
        """Whether all leaves have equal links up, to the same spines: all ways are equally long."""
        leaves = [switch for switch in self.switches if self._down[switch]]
        spines = {frozenset(x.b for x in self._up[leaf]) for leaf in leaves}
        wires = {(x.latency, x.bandwidth) for leaf in leaves for x in self._up[leaf]}
        return len(spines) == 1 and len(wires) <= 1 and spines.pop().isdisjoint(leaves)

    @cached_property
    def inner_links(self) -> int:
        """How many links join switches, each way counted."""
        return sum(map(len, self._up.values()))

    def down(self, switch: str) -> Sequence[Link]:
        """Return a switch's links to nodes; a leaf has some."""
        return self._down.get(switch, ())

    def up(self, switch: str) -> Sequence[Link]:
        """Return a switch's links to other switches."""
        return self._up.get(switch, ())

    def leaf(self, port: str) -> str | None:
        """Return the switch that a node's NIC is connected to."""
        ends = [link.b for link in self._links.get(port, ()) if link.b in self.switches]
        return ends[0] if ends else None

    def sharing(self, leaf: str, flows: float) -> float:
        """Return how many flows share the busiest of a leaf's links up, about.

        Args:
            leaf: Name of the switch.
            flows: That each port below it sends up or gets from there, on average.
        """
        links = len(self.up(leaf))
        total = flows * len(self.down(leaf))
        if links < 2 or total <= 1:
            return max(1.0, total / max(1, links))
        # The busiest of n equal links that a hash deals m flows each has about m + sqrt(m ln n).
        mean = total / links
        return max(1.0, min(total, mean + math.sqrt(mean * math.log(links))))

    def way(self, source: str, destination: str, flow: str) -> tuple[Link, ...] | None:
        """Return the links that a flow between two NICs takes: the fewest; None if there are none.

        Where several next links are equally near, the flow's hash takes one, by their weights.
        """
        last, leaves = self._ends(destination)
        found: list[Link] = []
        at = source
        while at != destination:
            near = last.get(at) or self._nearer(at, leaves)
            if not near:
                return None
            found.append(near[0] if len(near) == 1 else _pick(near, f"{flow} at {at}"))
            at = found[-1].b
        return tuple(found)

    def _ends(self, port: str) -> tuple[dict[str, list[Link]], tuple[str, ...]]:
        """Return the links to a NIC, by where they come from, and the switches among those."""
        found = self._known_ends.get(port)
        if found is None:
            last = {
                link.b: [x for x in self._links[link.b] if x.b == port]
                for link in self._links.get(port, ())
            }
            found = self._known_ends[port] = last, tuple(a for a in last if a in self.switches)
        return found

    def _nearer(self, at: str, leaves: tuple[str, ...]) -> Sequence[Link]:
        """Return the links that lead nearer to what is connected to these switches, if any do."""
        found = self._known_nearer.get((at, leaves))
        if found is None:
            links = self._up.get(at) or [x for x in self._links.get(at, ()) if x.b in self.switches]
            if at in self.switches or len(links) > 1:
                if leaves not in self._distances:
                    self._distances[leaves] = _Distances(leaves, self._up)
                links = self._distances[leaves].nearest(links)
            found = self._known_nearer[at, leaves] = links
        return found


def _pick(links: Sequence[Link], key: str) -> Link:
    weights = [1.0 if link.weight is None else link.weight for link in links]
    digest = blake2b(key.encode(), digest_size=8).digest()
    point = int.from_bytes(digest, "big") / 2**64 * sum(weights)
    for link, weight in zip(links, weights, strict=True):
        point -= weight
        if point < 0:
            return link
    return links[-1]
