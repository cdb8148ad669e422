"""Lanes: the fewest pieces of messages and links that have to be simulated for the same times.

Where two links follow each other and nothing crosses one of them alone, the narrower one decides:
a message never waits for the other. Of messages that come to a link at the very same time another
one may go first then.

Where messages are cut over lanes that are alike, so are the links that these cross, and all are
free at the same times: one stands for them. That holds for an edge only if it does for all edges
whose messages cross those links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pycoll.cost.simulate import EdgeRoutes, SimRoute


def fewest(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> Sequence[EdgeRoutes]:
    """Return ways by which every message takes as long, with the fewest lanes and links.

    Args:
        ways: Of each edge.
        cut: Whether all messages of each edge are cut over its lanes.
    """
    return _without_followers(_without_alike(ways, cut), cut)


def _without_followers(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> Sequence[EdgeRoutes]:
    """Put one link for those that always follow each other, as wide as the narrowest of them.

    Not where a message chooses its lane: it goes by how far those before it have come.
    """
    crossed, follow = Counter[int](), Counter[tuple[int, int]]()
    for way, whole in zip(ways, cut, strict=True):
        if not whole and len(way.lanes) > 1:
            crossed.update([link for lane in way.lanes for link, _ in lane.links])
            continue
        for lane in way.lanes:
            links = [link for link, _ in lane.links]
            crossed.update(links)
            follow.update(pairwise(links))
    after = {b: a for (a, b), n in follow.items() if n == crossed[a] == crossed[b]}
    if not after:
        return ways

    def shorter(lane: SimRoute) -> SimRoute:
        links: list[tuple[int, float]] = []
        for link, bandwidth in lane.links:
            if link in after:
                first, narrowest = links[-1]
                links[-1] = first, min(narrowest, bandwidth)
            else:
                links.append((link, bandwidth))
        return lane._replace(links=tuple(links))

    return [EdgeRoutes(way.latency, (*map(shorter, way.lanes),)) for way in ways]


def _without_alike(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> Sequence[EdgeRoutes]:
    """Put one lane for all that are alike."""
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
