"""Clusters for studies: equal machines under switches, with links that are stated, not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pycoll.arguments import flag, instance, integer, number, row
from pycoll.errors import UsageError, quoted
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Place, Socket, Switch, within
from pycoll.topology.topology import Topology

#: The most nodes, ranks and links of a cluster: each is an object, and takes microseconds to make.
MOST = 1 << 20
MOST_SOCKETS = 256  #: of a node, where each is linked with each
MOST_PARTS = 1024  #: rails, and GPUs, of a node


class _Wire(NamedTuple):
    latency: float  #: seconds
    bandwidth: float  #: bytes per second, each way
    kind: str


class Wire(_Wire):
    """What a link is like, wherever it is."""

    __slots__ = ()

    def __new__(cls, latency: float, bandwidth: float, kind: str) -> Wire:
        """Check the fields; UsageError: a number is not finite or below 0, the kind is no text."""
        number("Wire: latency", latency)
        number("Wire: bandwidth", bandwidth)
        instance("Wire: kind", kind, str)
        return super().__new__(cls, latency, bandwidth, kind)


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

    Returns:
        The Topology.

    Raises:
        UsageError: A number does not fit the others.

    Example:
        >>> topology.cluster(nodes=2, ranks_per_node=4).size
        8
    """
    nodes, racks = integer("nodes", nodes, 1, MOST), integer("racks", racks, 1)
    cyclic = flag("cyclic", cyclic)
    uplink = network if uplink is None else uplink
    _wires(network=network, uplink=uplink, memory=memory, bridge=bridge)
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
        wires += [Link(s.name, "core", *uplink) for s in switches]
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

    Returns:
        The Topology.

    Raises:
        UsageError: A number does not fit the others.

    Example:
        >>> len(topology.fabric(nodes=4, rails=2, leaves=4).switches)
        5
    """
    nodes, rails = integer("nodes", nodes, 1, MOST), integer("rails", rails, 1, MOST_PARTS)
    gpus = integer("gpus", gpus, 0, MOST_PARTS)
    rail_optimized, cyclic = flag("rail_optimized", rail_optimized), flag("cyclic", cyclic)
    oversubscription = number("oversubscription", oversubscription, above_zero=True)
    hop = number("hop", hop)
    _wires(network=network, memory=memory, bridge=bridge)
    width = rails if rail_optimized else 1  # leaves of one pod, or rack
    leaves, spines = _switches(nodes, width, leaves, spines, rail_optimized)
    pods = leaves // width
    if (links := nodes * (rails + gpus) + leaves * spines) > MOST:
        raise UsageError(
            f"nodes, rails, gpus, leaves and spines make {links} links, want at most {MOST}"
        )
    fast = _row("speeds", speeds, rails, "rails", network.bandwidth)
    flows = _row("weights", weights, spines, "spines", 1.0)
    counts = _counts(nodes, ranks_per_node)
    node = _railed(_bare(sockets, cores, counts, memory, bridge), fast, gpus, network.kind)
    pod = [i * pods // nodes for i in range(nodes)]
    down = [
        Link(
            within(f"node{i}", f"nic{k}"),
            f"leaf{pod[i] * width + k % width}",
            *network._replace(bandwidth=speed),
        )
        for i in range(nodes)
        for k, speed in enumerate(fast)
    ]
    shares = (None,) * spines if weights is None else flows
    racked = pods > 1 and not rail_optimized
    return Topology(
        tuple(
            replace(node, name=f"node{i}", rack=f"rack{pod[i]}" if racked else None)
            for i in range(nodes)
        ),
        tuple(Switch(f"leaf{i}") for i in range(leaves))
        + tuple(Switch(f"spine{i}") for i in range(spines)),
        (*down, *_to_spines(down, shares, oversubscription, hop)),
        _seats(counts, [part.name for part in node.devices or node.sockets], cyclic),
    )


def _switches(
    nodes: int, width: int, leaves: int | None, spines: int | None, rail_optimized: bool
) -> tuple[int, int]:
    """Return how many leaves and spines there are; a pod, or rack, has ``width`` leaves."""
    leaves = width if leaves is None else integer("leaves", leaves, 1)
    spines = int(leaves > 1) if spines is None else integer("spines", spines, 0, MOST)
    pods = leaves // width
    if leaves % width or pods > nodes:
        want = f"{width} for each pod" if rail_optimized else "one for each rack"
        raise UsageError(f"leaves is {quoted(leaves)}, want {want} of the {nodes} nodes")
    if spines == 0 and pods > 1:
        raise UsageError(f"spines is {spines}, want at least 1 to join {leaves} leaves")
    return leaves, spines


def _to_spines(
    down: Sequence[Link], shares: Sequence[float | None], oversubscription: float, hop: float
) -> Iterator[Link]:
    """Yield the links from every leaf to every spine; ``down`` has those of the leaves to NICs."""
    speeds: dict[str, float] = {}
    for link in down:
        speeds[link.b] = speeds.get(link.b, 0.0) + link.bandwidth
    for leaf, speed in speeds.items():
        for i, share in enumerate(shares):
            up = speed / oversubscription / len(shares)
            yield Link(leaf, f"spine{i}", hop, up, down[0].kind, share)


def _wires(**wires: Wire) -> None:
    for what, wire in wires.items():
        instance(what, wire, Wire)
        Wire(*wire)  # checks what _replace() does not


def _plain(given: Any) -> Any:
    """Return the list of numbers that an array of numpy stands for; all else as it is."""
    return given.tolist() if hasattr(given, "tolist") else given


def _counts(nodes: int, ranks_per_node: int | Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of each node."""
    what, given = "ranks_per_node", _plain(ranks_per_node)
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        counts = tuple(integer(f"{what}[{i}]", n, 0, MOST) for i, n in enumerate(given))
        if len(counts) != nodes:
            raise UsageError(f"{what} is {quoted(given)}, want {nodes} counts from 0 on")
    else:
        counts = (integer(what, given, 0, MOST),) * nodes
    if sum(counts) > MOST:
        raise UsageError(f"{what} adds up to {sum(counts)} ranks, want at most {MOST}")
    return counts


def _row(
    what: str, given: Sequence[float] | None, n: int, each: str, default: float
) -> tuple[float, ...]:
    """Return one number for each of ``n``."""
    if given is None:
        return (default,) * n
    given = _plain(given)
    if len(row(what, given)) != n:
        raise UsageError(
            f"{what} is {quoted(given)}, want {n} numbers above 0, one for each of the {each}"
        )
    return tuple(number(f"{what}[{i}]", value, above_zero=True) for i, value in enumerate(given))


def _bare(
    sockets: int, cores: int | None, counts: Sequence[int], memory: Wire, bridge: Wire
) -> Node:
    """Return a node with nothing but sockets."""
    names = [f"socket{i}" for i in range(integer("sockets", sockets, 1, MOST_SOCKETS))]
    links = [Link(name, name, *memory) for name in names]
    links += [Link(a, b, *bridge) for i, a in enumerate(names) for b in names[i + 1 :]]
    most = max(1, -(-max(counts) // sockets))
    each = most if cores is None else integer("cores", cores, 0, MOST)
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
    dealt = sorted((turn, i) for i, n in enumerate(counts) for turn in range(n))
    return tuple(rows[i][turn] for turn, i in dealt)
