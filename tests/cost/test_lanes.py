"""Lanes that are left out: what is simulated without them takes as long, to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pycoll.algorithms import get
from pycoll.cost import Machine
from pycoll.cost.lanes import fewest
from pycoll.cost.prediction import _estimate, predict
from pycoll.cost.simulate import EdgeRoutes, SimRoute
from pycoll.topology import ROCE, Topology, fabric

FABRICS = {
    "alike": fabric(8, 8, rails=8, leaves=8, spines=8, sockets=2),
    "two pods": fabric(8, 8, rails=8, leaves=16, spines=8, sockets=2, oversubscription=2),
    "narrow": fabric(16, rails=2, leaves=8, spines=4, oversubscription=8, network=ROCE),
    "speeds": fabric(16, 4, rails=2, leaves=4, spines=3, speeds=[25e9, 50e9]),
}


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 28])
@pytest.mark.parametrize("name", ["one_shot", "two_shot", "ring", "bruck", "hierarchical"])
@pytest.mark.parametrize("t", FABRICS.values(), ids=FABRICS)
def test_messages_take_as_long(
    t: Topology, name: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, placement = Machine.described(t), t.placement()
    took = predict(get(name), nbytes, machine, placement=placement)
    monkeypatch.setattr("pycoll.cost.timing.fewest", lambda ways, cut: ways)
    _estimate.cache_clear()
    assert predict(get(name), nbytes, machine, placement=placement) == took


def way(*lanes: tuple[int, ...]) -> EdgeRoutes:
    """Return a way of lanes that each cross some links."""
    share = 1 / len(lanes)
    return EdgeRoutes(1.0, tuple(SimRoute(1.0, tuple((x, 9.0) for x in y), share) for y in lanes))


def lanes_of(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> list[int]:
    """Return how many lanes are left of each edge."""
    return [len(found.lanes) for found in fewest(ways, cut)]


def test_one_lane_stands_for_all_that_are_alike() -> None:
    ways = fewest([way((0, 2), (1, 3)), way((3, 1), (2, 0))], [True, True])
    (one,), (other,) = (found.lanes for found in ways)
    # Whichever lane stands for the others, messages of both edges meet at the same links.
    assert one.links == other.links[::-1]


def test_what_is_not_cut_takes_one_lane_and_so_tells_them_apart() -> None:
    ways = [way((0, 2), (1, 3)), way((2, 0), (3, 1))]
    assert lanes_of(ways, [False, False]) == [2, 2]
    assert lanes_of(ways, [True, False]) == [2, 2]


def test_an_edge_whose_lanes_differ_tells_those_of_others_apart() -> None:
    """The second edge's lanes meet the third's on one link, so it comes by 0 and 1 separately."""
    ways = [way((0, 2), (1, 3)), way((0, 4), (1, 5)), way((4,)), way((6,), (7,))]
    assert lanes_of(ways, [True] * 4) == [2, 2, 1, 1]


def test_what_comes_by_another_link_tells_lanes_apart() -> None:
    """The second edge crosses 0 alone, so what goes on from there comes later to 2 than to 3."""
    ways = [way((0, 2), (1, 3)), way((0,)), way((2, 4), (3, 5))]
    assert lanes_of(ways, [True] * 3) == [2, 1, 2]


@pytest.mark.parametrize("lanes", [((0, 1), (0, 2)), ((1, 0), (2, 0)), ((0, 1), (1, 0))])
def test_pieces_that_share_a_link_wait_for_each_other(lanes: tuple[tuple[int, ...], ...]) -> None:
    assert lanes_of([way(*lanes)], [True]) == [2]


def crossed(ways: Sequence[EdgeRoutes], cut: Sequence[bool]) -> list[list[int]]:
    """Return how many links are left of each lane of each edge."""
    return [[len(lane.links) for lane in found.lanes] for found in fewest(ways, cut)]


def test_one_link_stands_for_those_that_always_follow_each_other() -> None:
    wide, narrow = (0, 9.0), (1, 3.0)
    for links in ((wide, narrow, (2, 9.0)), (narrow, wide, (2, 9.0))):
        one = EdgeRoutes(1.0, (SimRoute(1.0, links),))
        other = EdgeRoutes(1.0, (SimRoute(1.0, (*links[:2], (3, 9.0))),))
        for found in fewest([one, other], [False, False]):
            assert [bandwidth for _, bandwidth in found.lanes[0].links] == [3.0, 9.0]


def test_links_that_some_cross_apart_are_all_left() -> None:
    assert crossed([way((0, 1)), way((1, 2))], [True, True]) == [[2], [2]]
    assert crossed([way((0, 1)), way((1, 0))], [True, True]) == [[2], [2]]


def test_links_among_which_messages_choose_are_all_left() -> None:
    """A message takes the lane that is free first, and those before it are not yet on link 1."""
    ways = [way((0, 1), (2, 3, 4)), way((0, 1))]
    assert crossed(ways, [False, False]) == [[2, 3], [2]]
    assert crossed(ways, [True, False]) == [[1, 1], [1]]
