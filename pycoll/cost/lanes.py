"""Lanes: the fewest pieces of messages that have to be simulated for the same times.

Where messages are cut over lanes that are alike, so are the links that these cross, and all are
free at the same times: one stands for them. That holds for an edge only if it does for all edges
whose messages cross those links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pycoll.cost.simulate import EdgeRoutes


def fewest(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> Sequence[EdgeRoutes]:
    """Return ways by which every message takes as long, with one lane for all that are alike.

    Args:
        ways: Of each edge.
        cut: Whether all messages of each edge are cut over its lanes.
    """
    alike = [whole and _alike(way) for way, whole in zip(ways, cut, strict=True)]
    while any(alike):
        first = _firsts(ways, alike)
        links = Counter(first.values())
        torn = {  # links that others cross by themselves
            first.get(link)
            for way, one in zip(ways, alike, strict=True)
            for lane in (() if one else way.lanes)
            for link, _ in lane.links
        }
        still = [
            one
            and all(
                links[first[link]] == len(way.lanes) and first[link] not in torn
                for link, _ in way.lanes[0].links
            )
            for way, one in zip(ways, alike, strict=True)
        ]
        if still == alike:
            return [_one(way, first) if one else way for way, one in zip(ways, alike, strict=True)]
        alike = still
    return ways


def _alike(way: EdgeRoutes) -> bool:
    """Tell whether the lanes of an edge are as long and as fast, and cross no link together."""
    if len(way.lanes) == 1:
        return False
    crossed = {link for lane in way.lanes for link, _ in lane.links}
    looks = {(lane.latency, lane.share, tuple([b for _, b in lane.links])) for lane in way.lanes}
    return len(looks) == 1 and len(crossed) == sum(len(lane.links) for lane in way.lanes)


def _firsts(ways: Sequence[EdgeRoutes], alike: Sequence[bool]) -> dict[int, int]:
    """Return, of each link that like lanes cross, the one that stands for it."""
    first: dict[int, int] = {}

    def of(link: int) -> int:
        while (other := first.setdefault(link, link)) != link:
            link = other
        return link

    for way, one in zip(ways, alike, strict=True):
        for (link, _), *others in zip(*(lane.links for lane in way.lanes if one), strict=True):
            stands = of(link)
            for other, _ in others:
                first[of(other)] = stands
    return {link: of(link) for link in first}


def _one(way: EdgeRoutes, first: dict[int, int]) -> EdgeRoutes:
    """Return the way with one lane, over links that stand for others."""
    lane = way.lanes[0]
    links = tuple([(first[link], bandwidth) for link, bandwidth in lane.links])
    return EdgeRoutes(way.latency, (lane._replace(links=links),))
