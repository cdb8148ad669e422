"""Clusters for studies: equal machines under switches, with links that are stated, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pycoll.errors import UsageError
from pycoll.topology.model import Link, Nic, Node, Place, Socket, Switch, within
from pycoll.topology.topology import Topology


class Wire(NamedTuple):
    """What a link is like, wherever it is."""

    latency: float  #: seconds
    bandwidth: float  #: bytes per second, each way
    kind: str


MEMORY = Wire(100e-9, 30e9, "memory")
BRIDGE = Wire(150e-9, 40e9, "bridge")
PCIE = Wire(300e-9, 25e9, "pcie")
ETHERNET = Wire(5e-6, 25e9 / 8, "ethernet")
INFINIBAND = Wire(600e-9, 200e9 / 8, "infiniband")


def cluster(
    nodes: int,
    ranks_per_node: int | Sequence[int] = 1,
    *,
    sockets: int = 1,
    racks: int = 1,
    cores: int | None = None,
    cyclic: bool = False,
    network: Wire = ETHERNET,
    uplink: Wire | None = None,
    memory: Wire = MEMORY,
    bridge: Wire = BRIDGE,
) -> Topology:
    """Return equal nodes, each with one NIC, under a switch for each rack.

    Args:
        nodes: Number of nodes.
        ranks_per_node: Ranks on every node, or one number for each node.
        sockets: Sockets of each node; the ranks of a node fill them evenly, in order.
        racks: Racks, filled evenly in order; more than one get a switch above theirs.
        cores: Cores of each socket; default: one for each of its ranks.
        cyclic: Deal ranks to the nodes in turn, not node after node.
        network: Every link from a NIC to its switch.
        uplink: Every link from a rack's switch to the one above; default: ``network``.
        memory: Every socket's memory.
        bridge: Every link between two sockets of a node.

    Raises:
        UsageError: A number does not fit the others.
    """
    for what, number in (("nodes", nodes), ("sockets", sockets), ("racks", racks)):
        if number < 1:
            raise UsageError(f"{what} is {number}, want at least 1")
    if racks > nodes:
        raise UsageError(f"racks is {racks}, want at most one for each of {nodes} nodes")
    counts = (ranks_per_node,) * nodes if isinstance(ranks_per_node, int) else tuple(ranks_per_node)
    if len(counts) != nodes or min(counts) < 0:
        raise UsageError(f"ranks_per_node is {ranks_per_node}, want {nodes} counts from 0 on")
    names = [f"socket{i}" for i in range(sockets)]
    links = [Link(name, name, *memory) for name in names]
    links += [Link(a, b, *bridge) for i, a in enumerate(names) for b in names[i + 1 :]]
    links.append(Link(names[0], "nic0", *PCIE))
    each = cores if cores is not None else max(1, -(-max(counts) // sockets))
    node = Node(
        "",
        sockets=tuple(Socket(name, each, each) for name in names),
        nics=(Nic("nic0", network.kind, network.bandwidth, True, names[0]),),
        links=tuple(links),
    )
    rack = [i * racks // nodes for i in range(nodes)]
    wires = [Link(within(f"node{i}", "nic0"), f"switch{rack[i]}", *network) for i in range(nodes)]
    switches = [Switch(f"switch{i}") for i in range(racks)]
    if racks > 1:
        wires += [Link(s.name, "core", *(uplink or network)) for s in switches]
        switches.append(Switch("core"))
    return Topology(
        tuple(
            replace(node, name=f"node{i}", rack=f"rack{rack[i]}" if racks > 1 else None)
            for i in range(nodes)
        ),
        tuple(switches),
        tuple(wires),
        _seats(counts, names, cyclic),
    )


def _seats(counts: Sequence[int], sockets: Sequence[str], cyclic: bool) -> tuple[Place, ...]:
    """Return the place of every rank."""
    rows = [
        [Place(f"node{i}", sockets[local * len(sockets) // n]) for local in range(n)]
        for i, n in enumerate(counts)
    ]
    if not cyclic:
        return tuple(place for row in rows for place in row)
    return tuple(row[turn] for turn in range(max(counts)) for row in rows if turn < len(row))
