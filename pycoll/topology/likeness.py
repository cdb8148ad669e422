"""Likeness: ranks whose ways are equal, and the routes of one pair for all that are like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pycoll.topology.model import Place
from pycoll.topology.routing import Route


class Likeness:
    """Ranks told apart by what the length of their ways depends on."""

    def __init__(
        self,
        ranks: Sequence[Place],
        leaves: Callable[[str], object],
        routes: Callable[[int, int], tuple[Route, ...]],
        equal: bool,
    ) -> None:
        """Keep what it depends on.

        Args:
            ranks: Where each runs.
            leaves: Returns the switch of each NIC of a node.
            routes: Returns the routes of two ranks.
            equal: Nodes differ in nothing else, and no hash makes a way longer.
        """
        self._ranks = ranks
        self._leaves = leaves
        self._routes_of = routes
        self._equal = equal
        self._numbers: dict[object, int] = {}  # of outlooks
        self._outlooks: dict[int, int] = {}  # of ranks
        self._routes: dict[tuple[int, int, bool], tuple[Route, ...]] = {}

    def outlook(self, rank: int) -> int:
        """Return a number that is the same of ranks at one seat of nodes at the same leaves."""
        found = self._outlooks.get(rank)
        if found is None:
            place = self._ranks[rank]
            of = place.at, place.rails, self._leaves(place.node)
            found = self._outlooks[rank] = self._numbers.setdefault(of, len(self._numbers))
        return found

    def routes(self, source: int, destination: int) -> tuple[Route, ...]:
        """Return routes that are as the two ranks' own but for the names of nodes and spines.

        Where all else is equal, they are looked for once for all ranks of the two outlooks.
        """
        if not self._equal:
            return self._routes_of(source, destination)
        near = self._ranks[source].node == self._ranks[destination].node
        key = self.outlook(source), self.outlook(destination), near
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._routes_of(source, destination)
        return found
