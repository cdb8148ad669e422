"""Where ranks run: read from the machine, carried as JSON, and put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.runtime.host import locality
from pycoll.runtime.host.locality import NOWHERE, Locality
from pycoll.sysfs import NUMA, Sysfs


def ranks(*spots: tuple[str, int, set[int]]) -> list[Locality]:
    return [Locality(host, memory, sum(1 << cpu for cpu in cpus)) for host, memory, cpus in spots]


def sharing(places: list[Locality]) -> list[int]:
    """Everyone shares memory with everyone on the host."""
    return [sum(1 << i for i, p in enumerate(places) if p.host == one.host) for one in places]


def test_this_process() -> None:
    mine = Locality.mine()
    assert mine.cpus
    assert mine.memory >= NOWHERE
    assert Locality.parse(json.loads(json.dumps(mine.encode()))) == mine


@given(st.integers(1, 1 << 1000), st.integers(-1, 7), st.text(max_size=9))
def test_a_place_survives_its_travel(cpus: int, memory: int, host: str) -> None:
    there = Locality(host, memory, cpus)
    assert Locality.parse(json.loads(json.dumps(there.encode()))) == there


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.none(), st.integers(-3, 3), st.text(max_size=5), st.lists(st.none()))
            for name in ("host", "memory", "cpus")
        },
    )
)
def test_a_place_that_lies_is_one_or_an_error(said: dict[str, object]) -> None:
    try:
        there = Locality.parse(said)
    except (ValueError, TypeError, KeyError):
        return
    assert there.memory >= NOWHERE
    assert there.cpus > 0


def test_the_memory_of_processors(tmp_path: Path) -> None:
    for name, cpus in {"node0": "0-3,8-11", "node1": "4-7\n", "node2": "\n"}.items():
        (tmp_path / NUMA / name).mkdir(parents=True)
        (tmp_path / NUMA / name / "cpulist").write_text(cpus)
    host = Sysfs(tmp_path)
    assert locality.memory_of({0, 9}, host) == 0
    assert locality.memory_of({4, 5, 6, 7}, host) == 1
    assert locality.memory_of({3, 4}, host) == NOWHERE
    assert locality.memory_of({64}, host) == NOWHERE
    assert locality.memory_of({0}, Sysfs(tmp_path / "missing")) == NOWHERE


def test_hosts_are_numbered_by_their_first_ranks() -> None:
    places = ranks(("b", 0, {0}), ("a", 0, {0}), ("b", 0, {1}))
    assert locality.hosts(places) == (0, 1, 0)
    assert locality.cores(places, "b") == (2, 2)
    assert locality.cores(places, "a") == (1, 1)


def test_cores_count_where_they_are_scarcest() -> None:
    # Equal numbers of processors of different hosts are different processors.
    assert locality.scarcest(ranks(("a", 0, {0, 1}), ("a", 0, {0, 1}), ("b", 0, {0, 1}))) == 2
    assert locality.scarcest(ranks(("a", 0, {0}), ("a", 0, {0}), ("b", 0, {0, 1, 2}))) == 1
    assert locality.scarcest(ranks(("a", 0, {0, 1, 2, 3}), ("b", 0, {0}))) == 1


@pytest.mark.parametrize(
    ("spots", "levels"),
    [
        ([("a", 0), ("a", 0), ("a", 0)], {}),
        ([("a", 0), ("a", 0), ("a", 1), ("a", 1)], {"socket": (0, 0, 1, 1)}),
        ([("a", 0), ("b", 0), ("a", 0), ("b", 0)], {"node": (0, 1, 0, 1)}),
        ([("a", 0), ("b", 0)], {}),
        (
            [("a", 0), ("a", 0), ("a", 1), ("b", 0), ("b", 0)],
            {"socket": (0, 0, 1, 2, 2), "node": (0, 0, 0, 1, 1)},
        ),
        # A rank that may run anywhere makes its whole node one.
        (
            [("a", 0), ("a", 1), ("a", NOWHERE), ("b", 0), ("b", 1), ("b", 1)],
            {"socket": (0, 0, 0, 1, 2, 2), "node": (0, 0, 0, 1, 1, 1)},
        ),
        (
            [("a", 0), ("a", 1), ("b", NOWHERE), ("b", 0)],
            {"socket": (0, 1, 2, 2), "node": (0, 0, 1, 1)},
        ),
    ],
)
def test_levels(spots: list[tuple[str, int]], levels: dict[str, tuple[int, ...]]) -> None:
    places = ranks(*((host, memory, {0}) for host, memory in spots))
    found = locality.placement(places, sharing(places))
    assert {level.name: level.groups for level in found.levels} == levels


def test_a_node_holds_ranks_that_all_share_memory() -> None:
    places = ranks(*[("a", 0, {0})] * 5)
    found = locality.placement(places, [0b00011, 0b00111, 0b11110, 0b11100, 0b11100])
    assert found.groups("node") == ((0, 1), (2, 3, 4))
