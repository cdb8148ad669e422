"""Rails, leaves and spines: what the builder makes, and by which way messages go."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from pycoll.errors import UsageError
from pycoll.topology import (
    ETHERNET,
    HOP,
    INFINIBAND,
    NDR,
    PCIE,
    ROCE,
    Link,
    Nic,
    Node,
    Place,
    Socket,
    Switch,
    Topology,
    cluster,
    fabric,
    tree,
)
from pycoll.topology.document import dumps, loads

NIC = NDR.bandwidth  # bytes per second of a rail


def switches(t: Topology, source: int, destination: int, flows: int = 1) -> list[list[str]]:
    """Return the switches of every route."""
    names = {switch.name for switch in t.switches}
    routes = t.routes(source, destination, flows)
    return [[link.b for link in route.links if link.b in names] for route in routes]


def test_a_leaf_for_each_rail_of_a_pod() -> None:
    t = fabric(8, rails=4, leaves=8, spines=2)
    assert [nic.name for nic in t.rails("node0")] == ["nic0", "nic1", "nic2", "nic3"]
    assert [t.leaf("node1", f"nic{k}") for k in range(4)] == ["leaf0", "leaf1", "leaf2", "leaf3"]
    assert [t.leaf("node7", f"nic{k}") for k in range(4)] == ["leaf4", "leaf5", "leaf6", "leaf7"]
    assert t.placement().names == ("leaf",)
    assert t.placement().groups("leaf") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert switches(t, 0, 1) == [["leaf0"], ["leaf1"], ["leaf2"], ["leaf3"]]
    for k, (first, spine, last) in enumerate(switches(t, 0, 4)):
        assert (first, spine[:5], last) == (f"leaf{k}", "spine", f"leaf{k + 4}")


def test_a_leaf_for_each_rack() -> None:
    t = fabric(8, 2, rails=2, leaves=4, rail_optimized=False)
    assert [node.rack for node in t.nodes[1:3]] == ["rack0", "rack1"]
    assert {t.leaf("node2", f"nic{k}") for k in range(2)} == {"leaf1"}
    assert t.placement().names == ("node", "rack")  # a leaf says nothing more
    assert t.placement().groups("rack") == (
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11),
        (*range(12, 16),),
    )
    assert (t.hops(0, 1), t.hops(0, 2), t.hops(0, 4)) == (0, 1, 3)


def test_bandwidths_add_up_over_rails_and_latencies_do_not() -> None:
    t = fabric(4, rails=4, leaves=8)
    assert t.bandwidth(0, 1) == pytest.approx(4 * NIC)
    assert t.latency(0, 1) == pytest.approx(2 * PCIE.latency + 2 * NDR.latency)
    assert t.latency(0, 2) == pytest.approx(2 * PCIE.latency + 2 * NDR.latency + 2 * HOP)
    assert [route.share for route in t.routes(0, 1)] == [0.25] * 4
    assert all(route.rdma for route in t.routes(0, 1))


def test_rails_of_different_speed_have_shares_by_their_speed() -> None:
    t = fabric(2, rails=3, speeds=[50e9, 25e9, 25e9])
    assert [route.share for route in t.routes(0, 1)] == [0.5, 0.25, 0.25]
    assert t.bandwidth(0, 1) == pytest.approx(100e9)


def test_a_rail_that_is_much_slower_is_not_used() -> None:
    t = fabric(2, rails=2, speeds=[NIC, NIC / 16])
    assert len(t.routes(0, 1)) == 2
    (route,) = fabric(2, rails=2, speeds=[NIC, NIC / 17]).routes(0, 1)
    assert (route.share, route.bandwidth) == (1.0, NIC)


def test_the_narrowest_link_of_each_route_counts() -> None:
    """Two leaves, two nodes each: 100 GB/s down, 25 GB/s up, on two spines."""
    t = fabric(4, leaves=2, spines=2, rail_optimized=False, oversubscription=4)
    assert t.bandwidth(0, 1) == pytest.approx(50e9)
    assert t.bandwidth(0, 2) == pytest.approx(12.5e9)  # a flow has one spine
    assert t.bandwidth(0, 2, flows=16) == pytest.approx(25e9)  # so many find both


def test_routes_that_share_a_link_do_not_add_up() -> None:
    """Both rails hang on one PCIe link of 30 GB/s."""
    narrow = Link("socket0", "pci0", 1e-7, 30e9, "pcie")
    t = fabric(2, rails=2, gpus=1)  # so that one bridge is there
    node = t.nodes[0]
    links = [link for link in node.links if not {link.a, link.b} & {"pci0", "nic1"}]
    links += [narrow, *(Link("pci0", f"nic{k}", 1e-7, 50e9, "pcie") for k in range(2))]
    nodes = tuple(replace(node, name=n.name, links=tuple(links)) for n in t.nodes)
    t = replace(t, nodes=nodes, ranks=tuple(Place(n.name, "socket0") for n in nodes))
    assert [route.bandwidth for route in t.routes(0, 1)] == [30e9, 30e9]
    assert t.bandwidth(0, 1) == pytest.approx(30e9)


def test_a_rank_uses_the_rails_of_its_socket_or_else_all() -> None:
    t = fabric(2, 4, rails=4, sockets=2)
    assert switches(t, 0, 4) == [["leaf0"], ["leaf1"]]
    assert switches(t, 3, 7) == [["leaf2"], ["leaf3"]]
    # Rail 0 meets rail 2, which is on another leaf.
    assert switches(t, 0, 7) == [["leaf0", "spine0", "leaf2"], ["leaf1", "spine0", "leaf3"]]
    t = fabric(2, 2, rails=1, sockets=2)
    assert t.bandwidth(1, 3) == pytest.approx(40e9)  # by the link to the other socket


def test_a_rank_at_a_gpu_uses_the_rail_beside_it() -> None:
    t = fabric(2, 4, rails=4, sockets=2, gpus=4)
    assert [switches(t, r, 4 + r) for r in range(4)] == [[[f"leaf{r}"]] for r in range(4)]
    assert t.latency(0, 4) == pytest.approx(4 / 3 * PCIE.latency + 2 * NDR.latency)


def test_a_place_may_name_its_rails() -> None:
    t = fabric(2, rails=4)
    ranks = (Place("node0", "socket0", ("nic3",)), Place("node1", "socket0", ("nic3", "nic0")))
    t = replace(t, ranks=ranks)
    # Whoever has fewer uses them in turn.
    assert switches(t, 0, 1) == [["leaf3", "spine0", "leaf0"], ["leaf3"]]
    with pytest.raises(UsageError, match=r"^rank 0 uses rail 'eth0' of node node0, want some of n"):
        replace(t, ranks=(Place("node0", "socket0", ("eth0",)),))


def test_rails_without_a_way_between_them_are_left_out() -> None:
    t = fabric(2, 2, rails=2, sockets=2, spines=0)  # leaves are not joined
    assert switches(t, 0, 2) == [["leaf0"]]
    (route,) = t.routes(0, 3)  # rail 0 cannot reach rail 1: as TCP finds its way
    assert not route.rdma
    assert [link.kind for link in route.links].count("bridge") == 1


def test_a_rail_that_is_down_is_none() -> None:
    t = fabric(2, rails=2)
    down = tuple(replace(nic, up=nic.name != "nic0") for nic in t.nodes[0].nics)
    t = replace(t, nodes=(replace(t.nodes[0], nics=down), t.nodes[1]))
    assert [nic.name for nic in t.rails("node0")] == ["nic1"]
    # Rail 1 of the one then meets both of the other.
    assert switches(t, 0, 1) == [["leaf1", "spine0", "leaf0"], ["leaf1"]]


def test_without_rails_there_is_one_route_without_rdma() -> None:
    (route,) = cluster(2, 1, network=ETHERNET).routes(0, 1)
    assert (route.rdma, route.share) == (False, 1.0)
    assert cluster(2).rails("node0") == ()
    (route,) = cluster(2, 1, network=INFINIBAND).routes(0, 1)
    assert route.rdma
    (route,) = fabric(2, network=ROCE).routes(0, 1)
    assert route.rdma  # Ethernet with an RDMA device
    (route,) = fabric(1, 2, rails=2).routes(0, 1)
    assert not route.rdma  # in a node memory is nearer


def test_nodes_forward_nothing() -> None:
    """Rail 0 of a and rail 1 of c are each connected to b, not to each other."""
    nodes = tuple(
        Node(
            name,
            (Socket("s"),),
            nics=(Nic("n", "infiniband"), Nic("m", "infiniband")),
            links=(Link("s", "n", 0, 1, "pcie"), Link("s", "m", 0, 1, "pcie")),
        )
        for name in "abc"
    )
    links = (Link("a/n", "b/n", 0, 1, "infiniband"), Link("b/n", "c/n", 0, 1, "infiniband"))
    t = Topology(nodes, (), links, tuple(Place(name, "s") for name in "abc"))
    assert t.hops(0, 1) == 0
    assert t.routes(0, 1)[0].rdma
    assert not t.routes(0, 2)[0].rdma  # TCP could go by b


def spines_of(t: Topology, flows: int) -> Counter[str]:
    """Count the flows of all pairs of nodes of different leaves by the spine they go by."""
    half = t.size // 2
    pairs = [(a, b) for a in range(half) for b in range(half, t.size)]
    return Counter(way[1] for pair in pairs for way in switches(t, *pair, flows))


def test_flows_spread_over_the_spines_by_their_weights() -> None:
    even = spines_of(fabric(32, leaves=2, spines=4, rail_optimized=False), 1)
    assert set(even) == {f"spine{i}" for i in range(4)}
    assert min(even.values()) > 0.7 * 256 / 4
    uneven = spines_of(fabric(32, leaves=2, spines=2, rail_optimized=False, weights=[3, 1]), 1)
    assert 0.65 < uneven["spine0"] / 256 < 0.85


def test_a_flow_keeps_its_spine_and_more_flows_find_more() -> None:
    t = fabric(32, leaves=2, spines=4, rail_optimized=False)
    assert switches(t, 0, 16) == switches(replace(t), 0, 16)
    assert len(switches(t, 0, 16)) == 1
    found = [len(switches(t, a, 16, flows=8)) for a in range(16)]
    assert max(found) == 4
    assert min(found) >= 2  # of 8 flows all on one of 4 spines is one in 16384


def test_a_document_keeps_rails_and_weights_and_old_ones_are_read() -> None:
    t = fabric(2, 2, rails=2, leaves=4, spines=2, weights=[1, 2], gpus=2)
    t = replace(t, ranks=(replace(t.ranks[0], rails=("nic1",)), *t.ranks[1:]))
    assert loads(dumps(t)) == t
    old = json.loads(dumps(cluster(2, 2, network=INFINIBAND)))
    assert "weight" not in json.dumps(old)
    assert set(old["ranks"][0]) == {"node", "at"}
    assert loads(json.dumps(old)).routes(0, 2)[0].rdma
    wrong = json.loads(dumps(t))
    wrong["links"][-1]["weight"] = 0
    with pytest.raises(
        UsageError, match=r"^links\[\d+\]: Link 'leaf\d', .*: weight is 0, want more than 0$"
    ):
        loads(json.dumps(wrong))


def test_the_tree_says_which_rail_leads_where_and_how_far_ranks_are() -> None:
    lines = tree(fabric(4, 2, rails=2, leaves=4, spines=1, oversubscription=2)).splitlines()
    assert "    nic1: infiniband, 400 Gb/s, up, RDMA by rdma1, rail 1 to leaf1" in lines
    assert "switch leaf0: leaf of 2 ports, 100 GB/s, and 50 GB/s up (2 to 1)" in lines
    assert "switch spine0" in lines
    assert lines[-2:] == [
        "rank 0 to 2 ranks: 1 hop, RDMA by 2 routes, 100 GB/s, 1 us",
        "rank 0 to 4 ranks: 3 hops, RDMA by 2 routes, 100 GB/s, 1.48 us",
    ]
    assert (
        tree(cluster(2)).splitlines()[-1] == "rank 0 to 1 rank: 1 hop, no RDMA, 3.125 GB/s, 10.6 us"
    )
    apart = Topology(
        tuple(Node(name, (Socket("s"),)) for name in "ab"),
        (Switch("x"),),
        ranks=(Place("a", "s"), Place("b", "s")),
    )
    assert tree(apart).splitlines()[-1] == "rank 0 to 1 rank: no link leads there"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, r"^nodes is 0, want at least 1$"),
        ({"nodes": 2, "rails": 0}, r"^rails is 0, want at least 1$"),
        ({"nodes": 4, "rails": 4, "leaves": 6}, r"^leaves is 6, want 4 for each pod of the 4 nod"),
        ({"nodes": 2, "leaves": 0}, r"^leaves is 0, want at least 1$"),
        (
            {"nodes": 2, "leaves": 3, "rail_optimized": False},
            r"^leaves is 3, want one for each rack of the 2 nodes$",
        ),
        ({"nodes": 2, "leaves": 2, "spines": 0}, r"^spines is 0, want at least 1 to join 2 leaves"),
        (
            {"nodes": 2, "oversubscription": 0},
            r"^oversubscription is 0, want a finite number of more than 0$",
        ),
        (
            {"nodes": 2, "rails": 2, "speeds": [1e9]},
            r"^speeds is \[1.*\], want 2 numbers above 0, ",
        ),
        (
            {"nodes": 2, "rails": 2, "weights": [0]},
            r"^weights.0. is 0, want a finite number of more",
        ),
        ({"nodes": 2, "ranks_per_node": [1]}, r"^ranks_per_node is \[1\], want 2 counts"),
    ],
)
def test_a_fabric_that_cannot_be(arguments, message) -> None:
    with pytest.raises(UsageError, match=message):
        fabric(**arguments)


def test_rails_of_no_node() -> None:
    with pytest.raises(UsageError, match=r"^rails of node 'x', want one of node0, node1$"):
        fabric(2).rails("x")


def test_nodes_whose_ports_differ_in_speed_are_not_uniform() -> None:
    t = fabric(4, 2, rails=2, leaves=2)
    assert t.uniform
    slow = replace(t.links[0], bandwidth=t.links[0].bandwidth / 2)
    assert not replace(t, links=(slow, *t.links[1:])).uniform


def test_an_island_of_switches_leads_nowhere() -> None:
    """Two switches with one way on, to each other; a flow must not go to and fro."""
    t = fabric(2, rails=1)
    island = [Switch("a"), Switch("b")]
    far = [
        replace(x, b="a") if x.a.startswith("node1") else x
        for x in (*t.links, Link("a", "b", *NDR))
    ]
    apart = replace(t, switches=(*t.switches, *island), links=tuple(far))
    with pytest.raises(UsageError, match="no link leads from rank 0"):
        apart.routes(0, 1)
    with pytest.raises(UsageError, match="no link leads from rank 1"):
        apart.routes(1, 0)
