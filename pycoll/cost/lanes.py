"""Lanes: the fewest pieces of messages that have to be simulated for the same times.

Where every message of an edge is cut over all its lanes, links that carry like pieces of the same
messages are free at the same times: one stands for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.cost.simulate import EdgeRoutes, SimRoute


def fewest(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> Sequence[EdgeRoutes]:
    """Return ways by which every message takes as long, with no two lanes alike.

    Args:
        ways: Of each edge.
        cut: Whether all messages of each edge are cut over its lanes.
    """
    if not any(whole and len(way.lanes) > 1 for way, whole in zip(ways, cut, strict=True)):
        return ways
    pieces: dict[object, int] = {}  # what pieces of an edge's messages are alike in: a number
    crossed: list[tuple[int, list[int]]] = []  # of each lane: that number, and links
    for edge, (way, whole) in enumerate(zip(ways, cut, strict=True)):
        links = [[link for link, _ in lane.links] for lane in way.lanes]
        apart = len(set().union(*links)) == sum(map(len, links))
        for number, lane in enumerate(way.lanes):
            speeds = tuple([bandwidth for _, bandwidth in lane.links])
            piece = edge, lane.latency, lane.share if whole and apart else number, speeds
            crossed.append((pieces.setdefault(piece, len(pieces)), links[number]))
    kind = _kinds(crossed)
    found, lanes_of = [], iter(crossed)
    for way in ways:
        like: dict[object, SimRoute] = {}
        for lane in way.lanes:
            of, mine = next(lanes_of)
            like.setdefault((of, tuple([kind[link] for link in mine])), lane)
        found.append(EdgeRoutes(way.latency, tuple(like.values())))
    return found


def _kinds(crossed: Sequence[tuple[int, Sequence[int]]]) -> dict[int, int]:
    """Return a number for each link, the same for those to which like pieces come by like links."""
    kind = dict.fromkeys((link for _, links in crossed for link in links), 0)
    count = 0
    while True:
        uses: dict[int, list[tuple[int, int]]] = {link: [] for link in kind}
        for of, links in crossed:
            before = -1
            for link in links:
                uses[link].append((of, before))
                before = kind[link]
        numbers: dict[object, int] = {}
        kind = {link: numbers.setdefault(tuple(use), len(numbers)) for link, use in uses.items()}
        if len(numbers) == count:
            return kind
        count = len(numbers)
