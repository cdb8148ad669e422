"""Routing: by which rails, leaves and spines the flows of two ranks go.

What is simplified: a flow keeps its way for ever, chosen by a hash of its ends. That is what
Ethernet switches do (equal-cost multipath); InfiniBand chooses by destination, and both can spread
packets adaptively, which the model does not. The hash is another one than a real switch's, so which
flows collide is an example of what happens, not a forecast. Several equal cables between two
switches are described as one link of their sum.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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

    @property
    def latency(self) -> float:
        """Seconds that the first byte takes."""
        return sum(link.latency for link in self.links)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the narrowest link, when nobody else uses it."""
        return min((link.bandwidth for link in self.links), default=float("inf"))


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
    routes = [Route(links, True) for links in ways]
    best = max((route.bandwidth for route in routes), default=0.0)
    used = [route for route in routes if route.bandwidth * SLOWEST >= best]
    total = sum(route.bandwidth for route in used)
    return tuple(replace(route, share=route.bandwidth / total) for route in used)


class Wiring:
    """The switches, and the links between them and to nodes; nodes forward nothing."""

    def __init__(self, links: Iterable[Link], switches: Iterable[str]) -> None:
        self.switches = frozenset(switches)
        self._links: dict[str, list[Link]] = {}
        for link in links:
            for one in (link, link.reverse()):
                self._links.setdefault(one.a, []).append(one)
        self._between = {
            switch: [x for x in self._links.get(switch, ()) if x.b in self.switches]
            for switch in self.switches
        }
        self._far: dict[tuple[str, ...], Mapping[str, int]] = {}

    def down(self, switch: str) -> list[Link]:
        """Return a switch's links to nodes; a leaf has some."""
        return [link for link in self._links.get(switch, ()) if link.b not in self.switches]

    def up(self, switch: str) -> list[Link]:
        """Return a switch's links to other switches."""
        return self._between.get(switch, [])

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
        ends = tuple(x.b for x in self._links.get(destination, ()))
        direct = [x for x in self._links.get(source, ()) if x.b == destination]
        if direct:
            return (_pick(direct, f"{flow} at {source}"),)
        far = self._hops_to(tuple(end for end in ends if end in self.switches))
        found: list[Link] = []
        at = source
        while at != destination:
            ahead = [x for x in self._links.get(at, ()) if x.b in far]
            least = min((far[x.b] for x in ahead), default=0)
            near = [x for x in ahead if far[x.b] == least]
            if at in far and far[at] == 1:
                near = [x for x in self._links[at] if x.b == destination]
            elif not near:
                return None
            found.append(_pick(near, f"{flow} at {at}"))
            at = found[-1].b
        return tuple(found)

    def _hops_to(self, ends: tuple[str, ...]) -> Mapping[str, int]:
        """Return how many links each switch is away from what is connected to these switches.

        Switches that cannot reach it are left out. Nodes are no part of it, for they forward
        nothing: so what is known of one NIC is known of all of its leaf.
        """
        found = self._far.get(ends)
        if found is None:
            hops = dict.fromkeys(ends, 1)
            queue = deque(ends)
            while queue:
                at = queue.popleft()
                for link in self._between.get(at, ()):
                    if link.b not in hops:
                        hops[link.b] = hops[at] + 1
                        queue.append(link.b)
            found = self._far[ends] = hops
        return found


def _pick(links: Sequence[Link], key: str) -> Link:
    if len(links) == 1:
        return links[0]
    weights = [1.0 if link.weight is None else link.weight for link in links]
    digest = blake2b(key.encode(), digest_size=8).digest()
    point = int.from_bytes(digest, "big") / 2**64 * sum(weights)
    for link, weight in zip(links, weights, strict=True):
        point -= weight
        if point < 0:
            return link
    return links[-1]
