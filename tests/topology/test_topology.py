"""The way between two ranks, and which ranks are near each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pycoll.errors import UsageError
from pycoll.topology import (
    BRIDGE,
    ETHERNET,
    INFINIBAND,
    MEMORY,
    PCIE,
    Device,
    Link,
    Node,
    Place,
    Socket,
    Switch,
    Topology,
    cluster,
)


def kinds(t: Topology, source: int, destination: int) -> list[str]:
    return [link.kind for link in t.path(source, destination)]


def test_paths_in_a_node() -> None:
    t = cluster(1, 4, sockets=2)
    assert kinds(t, 0, 0) == []
    assert kinds(t, 0, 1) == ["memory"]
    assert kinds(t, 0, 2) == ["bridge", "memory"]
    assert t.path(0, 2)[-1].a == "node0/socket1"  # the receiver's
    assert t.path(0, 1) == t.path(1, 0)  # one memory, shared
    assert t.path(0, 2)[0] == t.path(2, 0)[0].reverse()  # full duplex
    assert t.latency(0, 2) == pytest.approx(BRIDGE.latency + MEMORY.latency)
    assert t.bandwidth(0, 2) == min(BRIDGE.bandwidth, MEMORY.bandwidth)
    assert t.bandwidth(0, 0) == float("inf")


def test_paths_between_nodes() -> None:
    t = cluster(4, 2, racks=2, network=INFINIBAND)
    assert kinds(t, 0, 2) == ["pcie", "infiniband", "infiniband", "pcie"]
    assert kinds(t, 0, 4) == ["pcie", *4 * ["infiniband"], "pcie"]
    assert t.latency(0, 2) == pytest.approx(2 * PCIE.latency + 2 * INFINIBAND.latency)
    up = [set(t.path(source, 4)) for source in (0, 2)]
    assert {link.b for link in up[0] & up[1]} >= {"core", "switch1"}  # the contended links


def test_a_path_goes_on_from_where_it_came() -> None:
    t = cluster(6, 2, sockets=2, racks=3)
    for a in range(t.size):
        for b in range(t.size):
            path = t.path(a, b)
            assert all(x.b == y.a for x, y in pairwise(path))


def test_levels() -> None:
    t = cluster(4, 4, sockets=2, racks=2)
    p = t.placement()
    assert [level.name for level in p.levels] == ["socket", "node", "rack"]
    assert p.groups("node") == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert p.groups("socket")[:2] == ((0, 1), (2, 3))
    assert p.groups("rack") == (tuple(range(8)), tuple(range(8, 16)))


def test_levels_that_say_the_same_are_told_once() -> None:
    assert cluster(4, 2).placement().names == ("node",)  # of one socket each, in no rack
    assert cluster(4, 2, racks=4).placement().names == ("node",)
    assert cluster(4, 2, racks=2).placement().names == ("node", "rack")  # which has one leaf


def test_uneven_and_cyclic() -> None:
    t = cluster(3, [3, 1, 2])
    assert t.size == 6
    assert t.placement().groups("node") == ((0, 1, 2), (3,), (4, 5))
    t = cluster(3, [3, 1, 2], cyclic=True)
    assert t.placement().groups("node") == ((0, 3, 5), (1,), (2, 4))


def test_one_node_is_flat() -> None:
    assert cluster(1, 4).placement().flat
    assert cluster(4, 1).placement().flat


def test_ranks_on_devices_are_of_the_devices_socket() -> None:
    sockets = (Socket("socket0"), Socket("socket1"))
    devices = tuple(Device(f"gpu{i}", socket=f"socket{i // 2}") for i in range(4))
    t = Topology((Node("a", sockets, devices),), ranks=tuple(Place("a", d.name) for d in devices))
    assert t.placement().groups("socket") == ((0, 1), (2, 3))


def test_the_least_latency_wins_then_the_fewest_links() -> None:
    node = Node("a", (Socket("x"), Socket("y"), Socket("z")))
    xy = Link("a/x", "a/y", 1e-6, 1e9, "bridge")
    detour = (
        Link("a/x", "a/z", 1e-7, 1e9, "bridge"),
        Link("a/z", "a/y", 1e-7, 1e9, "bridge"),
    )
    t = Topology((node,), links=(xy, *detour), ranks=(Place("a", "x"), Place("a", "y")))
    assert [link.b for link in t.path(0, 1)] == ["a/z", "a/y"]
    t = replace(t, links=(replace(xy, latency=2e-7), *detour))
    assert [link.b for link in t.path(0, 1)] == ["a/y"]
    faster = replace(xy, latency=2e-7, bandwidth=2e9)
    t = replace(t, links=(replace(xy, latency=2e-7), faster))
    assert t.bandwidth(0, 1) == 2e9


def test_no_way_and_no_rank() -> None:
    node = Node("a", (Socket("x"), Socket("y")))
    t = Topology((node,), ranks=(Place("a", "x"), Place("a", "y")))
    with pytest.raises(UsageError, match=r"^no link leads from rank 0 \(a/x\) to rank 1 \(a/y\)$"):
        t.path(0, 1)
    with pytest.raises(UsageError, match=r"^destination is 2, want 0 to 1$"):
        t.path(0, 2)


A = Node("a", (Socket("x"),))


@pytest.mark.parametrize(
    ("nodes", "more", "message"),
    [
        ((A, A), {}, r"^node or switch 'a' occurs twice$"),
        ((A,), {"switches": (Switch("a"),)}, r"^node or switch 'a' occurs twice$"),
        ((Node("", ()),), {}, r"^node or switch '' is no name"),
        ((Node("a", (Socket("x/y"),)),), {}, r"^part of node a 'x/y' is no name"),
        ((A,), {"ranks": (Place("b", "x"),)}, r"^rank 0 is on node 'b', want one of a$"),
        ((A,), {"ranks": (Place("a", "y"),)}, r"^rank 0 is at 'y' of node a, want one of x$"),
        ((A,), {"links": (Link("a/x", "q", 0, 1, "k"),)}, r"^topology: link a/x to q ends at 'q'"),
        (
            (Node("a", (Socket("x"),), links=(Link("x", "q", 0, 1, "k"),)),),
            {},
            r"^node a: link x to q ends at 'q', want one of x$",
        ),
    ],
)
def test_a_topology_that_does_not_hang_together(nodes, more, message) -> None:
    with pytest.raises(UsageError, match=message):
        Topology(nodes, **more)


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1, 1), (0, 0), (float("nan"), 1)])
def test_a_link_that_cannot_be(latency, bandwidth) -> None:
    with pytest.raises(UsageError, match=r"^Link 'x', 'y': (latency|bandwidth) is .*, want .* 0"):
        Link("x", "y", latency, bandwidth, "k")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, r"^nodes is 0, want at least 1$"),
        ({"nodes": 2, "racks": 3}, r"^racks is 3, want at most one for each of 2 nodes$"),
        ({"nodes": 2, "ranks_per_node": [1]}, r"^ranks_per_node is \[1\], want 2 counts"),
        ({"nodes": 1, "ranks_per_node": -1}, r"^ranks_per_node is -1, want at least 0$"),
    ],
)
def test_a_cluster_that_cannot_be(arguments, message) -> None:
    with pytest.raises(UsageError, match=message):
        cluster(**arguments)


def test_a_cluster_has_what_was_asked_for() -> None:
    t = cluster(2, 5, sockets=2)
    assert [s.cores for s in t.nodes[0].sockets] == [3, 3]
    assert {link.kind for link in t.links} == {ETHERNET.kind}
    assert [s.name for s in t.switches] == ["switch0"]
