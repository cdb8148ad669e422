import pytest

from pycoll.errors import UsageError
from pycoll.schedule import Level, Placement

SOCKETS = Level("socket", (0, 1, 0, 1, 2, 3, 2, 3))
NODES = Level("node", (7, 7, 7, 7, 4, 4, 4, 4))


def test_groups_of_a_level() -> None:
    p = Placement.of(SOCKETS, NODES)
    assert not p.flat
    assert p.names == ("socket", "node")
    assert p.groups("node") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert p.groups("socket") == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_levels_that_split_nothing_are_left_out() -> None:
    alone, together = Level("core", tuple(range(8))), Level("rack", (3,) * 8)
    assert Placement.of(alone, NODES, together).names == ("node",)
    assert Placement.of(alone, together).flat
    assert Placement.of() == Placement()


def test_equal_splits_are_equal_whatever_the_numbers() -> None:
    assert Placement.of(NODES) == Placement.of(Level("node", (0, 0, 0, 0, 1, 1, 1, 1)))
    assert hash(Placement.of(NODES)) == hash(Placement.of(NODES))


def test_ranks_that_count_from_a_root_see_it_turned() -> None:
    p = Placement.of(Level("node", (0, 0, 0, 1, 1)))
    assert p.rotated(0) == p
    assert p.rotated(2).groups("node") == ((0, 3, 4), (1, 2))


def test_levels_are_of_one_number_of_ranks() -> None:
    with pytest.raises(UsageError, match=r"^levels are of \[2, 8\] ranks, want one number"):
        Placement.of(NODES, Level("rack", (0, 1)))


def test_an_unknown_level_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"^level is 'rack', want one of socket, node$"):
        Placement.of(SOCKETS, NODES).groups("rack")
    with pytest.raises(UsageError, match=r"^level is 'node', want one of no level$"):
        Placement().groups("node")
