"""Clusters for studies: equal machines under switches, with links that are stated, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pycoll.errors import UsageError
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Place, Socket, Switch, within
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
#: From a NIC to its leaf, and from switch to switch. With PCIe at both ends a write of a few bytes
#: takes 1.0 us by a leaf and 1.5 us by a spine, besides posting and polling. Measured with these
#: were 1.21 and 1.70 us, and 0.24 us for each further switch (medians of ib_write_lat over 9 leaves
#: and 6 pairs of leaves; InfiniBand HDR of the University of Maryland's cluster Zaratan, 2026).
NDR = Wire(200e-9, 400e9 / 8, "infiniband")
ROCE = Wire(200e-9, 100e9 / 8, "ethernet")
HOP = 240e-9


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
    _at_least_one(nodes=nodes, sockets=sockets, racks=racks)
    if racks > nodes:
        raise UsageError(f"racks is {racks}, want at most one for each of {nodes} nodes")
    counts = _counts(nodes, ranks_per_node)
    bare = _bare(sockets, cores, counts, memory, bridge)
    names = [numa.name for numa in bare.sockets]
    node = replace(
        bare,
        nics=(Nic("nic0", network.kind, network.bandwidth, True, names[0]),),
        links=(*bare.links, Link(names[0], "nic0", *PCIE)),
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


def fabric(
    nodes: int,
    ranks_per_node: int | Sequence[int] = 1,
    *,
    rails: int = 1,
    leaves: int | None = None,
    spines: int | None = None,
    rail_optimized: bool = True,
    oversubscription: float = 1.0,
    speeds: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    sockets: int = 1,
    gpus: int = 0,
    cores: int | None = None,
    cyclic: bool = False,
    network: Wire = NDR,
    hop: float = HOP,
    memory: Wire = MEMORY,
    bridge: Wire = BRIDGE,
) -> Topology:
    """Return equal nodes with RDMA rails, under leaf switches that spine switches join.

    Where it is optimised for rails, rail k of every node of a pod goes to the pod's leaf k, so
    that rails of one number meet in one switch; the placement's level "leaf" is then the pod.
    Else all rails of a node go to the leaf of its rack. Every leaf has one link to every spine.

    Args:
        nodes: Number of nodes.
        ranks_per_node: Ranks on every node, or one number for each node.
        rails: NICs of each node; they are dealt to its sockets in order, as ranks are.
        leaves: Leaf switches, filled evenly in order; default: one, or one for each rail.
        spines: Spine switches; default: one, or none above a single leaf. Without spines the
            leaves are not joined.
        rail_optimized: A leaf for each rail, not for each rack.
        oversubscription: Bytes per second of all links from a leaf down, over those of all up.
        speeds: Bytes per second each way of each rail; default: the ``network``'s.
        weights: Share of each spine of the flows that leaves spread; default: alike.
        sockets: Sockets of each node; the ranks of a node fill them evenly, in order.
        gpus: GPUs of each node, each below the PCI bridge of a rail; ranks are at them then.
        cores: Cores of each socket; default: one for each of its ranks.
        cyclic: Deal ranks to the nodes in turn, not node after node.
        network: Every link from a NIC to its leaf; links above have its kind.
        hop: Seconds of every link between a leaf and a spine.
        memory: Every socket's memory.
        bridge: Every link between two sockets of a node.

    Raises:
        UsageError: A number does not fit the others.
    """
    _at_least_one(nodes=nodes, sockets=sockets, rails=rails)
    width = rails if rail_optimized else 1  # leaves of one pod, or rack
    leaves = width if leaves is None else leaves
    spines = int(leaves > 1) if spines is None else spines
    pods = leaves // width
    if leaves < 1 or leaves % width or pods > nodes:
        want = f"{rails} for each pod" if rail_optimized else "one for each rack"
        raise UsageError(f"leaves is {leaves}, want {want} of the {nodes} nodes")
    if spines < 0 or (spines == 0 and pods > 1):
        raise UsageError(f"spines is {spines}, want at least 1 to join {leaves} leaves")
    if not oversubscription > 0:
        raise UsageError(f"oversubscription is {oversubscription}, want more than 0")
    fast = _row("speeds", speeds, rails, "rails", network.bandwidth)
    flows = _row("weights", weights, spines, "spines", 1.0)
    counts = _counts(nodes, ranks_per_node)
    node = _railed(_bare(sockets, cores, counts, memory, bridge), fast, gpus, network.kind)
    wires: list[Link] = []
    down = dict.fromkeys(range(leaves), 0.0)
    for i in range(nodes):
        for k, speed in enumerate(fast):
            leaf = i * pods // nodes * width + k % width
            down[leaf] += speed
            nic = within(f"node{i}", f"nic{k}")
            wires.append(Link(nic, f"leaf{leaf}", network.latency, speed, network.kind))
    for leaf, speed in down.items():
        for i, weight in enumerate(flows):
            up = speed / oversubscription / spines
            share = None if weights is None else weight
            wires.append(Link(f"leaf{leaf}", f"spine{i}", hop, up, network.kind, share))
    racked = pods > 1 and not rail_optimized
    return Topology(
        tuple(
            replace(node, name=f"node{i}", rack=f"rack{i * pods // nodes}" if racked else None)
            for i in range(nodes)
        ),
        tuple(Switch(f"leaf{i}") for i in range(leaves))
        + tuple(Switch(f"spine{i}") for i in range(spines)),
        tuple(wires),
        _seats(counts, [part.name for part in node.devices or node.sockets], cyclic),
    )


def _at_least_one(**numbers: int) -> None:
    for what, number in numbers.items():
        if number < 1:
            raise UsageError(f"{what} is {number}, want at least 1")


def _counts(nodes: int, ranks_per_node: int | Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of each node."""
    counts = (ranks_per_node,) * nodes if isinstance(ranks_per_node, int) else tuple(ranks_per_node)
    if len(counts) != nodes or min(counts) < 0:
        raise UsageError(f"ranks_per_node is {ranks_per_node}, want {nodes} counts from 0 on")
    return counts


def _row(
    what: str, given: Sequence[float] | None, n: int, each: str, default: float
) -> tuple[float, ...]:
    """Return one number for each of ``n``."""
    row = (default,) * n if given is None else tuple(given)
    if len(row) != n or not all(number > 0 for number in row):
        raise UsageError(f"{what} is {given}, want {n} numbers above 0, one for each of the {each}")
    return row


def _bare(
    sockets: int, cores: int | None, counts: Sequence[int], memory: Wire, bridge: Wire
) -> Node:
    """Return a node with nothing but sockets."""
    names = [f"socket{i}" for i in range(sockets)]
    links = [Link(name, name, *memory) for name in names]
    links += [Link(a, b, *bridge) for i, a in enumerate(names) for b in names[i + 1 :]]
    each = cores if cores is not None else max(1, -(-max(counts) // sockets))
    return Node("", tuple(Socket(name, each, each) for name in names), links=tuple(links))


def _railed(bare: Node, speeds: Sequence[float], gpus: int, kind: str) -> Node:
    """Return the node with rails, and GPUs beside them; PCIe is as fast as what hangs on it."""
    n, names = len(speeds), [numa.name for numa in bare.sockets]
    links, bridges = list(bare.links), []
    above = [names[k * len(names) // n] for k in range(n)]  # of each rail
    nics = [Nic(f"nic{k}", kind, speeds[k], True, above[k], rdma=f"rdma{k}") for k in range(n)]
    beside = [i * n // gpus for i in range(gpus)]  # of each GPU: its rail
    devices = [Device(f"gpu{i}", socket=above[k]) for i, k in enumerate(beside)]
    for k, nic in enumerate(nics):
        wide = max(PCIE.bandwidth, speeds[k])
        if k not in beside:
            links.append(Link(above[k], nic.name, PCIE.latency, wide, PCIE.kind))
            continue
        bridges.append(Pci(f"pci{k}", None, above[k], "bridge"))
        links.append(Link(above[k], f"pci{k}", PCIE.latency * 2 / 3, wide, PCIE.kind))
        for name in (nic.name, *(f"gpu{i}" for i, rail in enumerate(beside) if rail == k)):
            links.append(Link(f"pci{k}", name, PCIE.latency / 3, wide, PCIE.kind))
    return replace(
        bare, nics=tuple(nics), devices=tuple(devices), pci=tuple(bridges), links=tuple(links)
    )


def _seats(counts: Sequence[int], parts: Sequence[str], cyclic: bool) -> tuple[Place, ...]:
    """Return the place of every rank."""
    rows = [
        [Place(f"node{i}", parts[local * len(parts) // n]) for local in range(n)]
        for i, n in enumerate(counts)
    ]
    if not cyclic:
        return tuple(place for row in rows for place in row)
    return tuple(row[turn] for turn in range(max(counts)) for row in rows if turn < len(row))
