"""A topology as a short tree for people to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pycoll.arguments import instance
from pycoll.errors import UsageError, counted
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Socket
from pycoll.topology.topology import Topology

#: Ranks that are each looked at.
EACH = 256


def tree(topology: Topology) -> str:
    """Draw a topology: one line for each part, indented by what holds it.

    Args:
        topology: What is drawn.

    Returns:
        The lines, without a final newline.

    Raises:
        UsageError: It is no Topology.

    Example:
        >>> topology.tree(topology.cluster(2)).splitlines()[0]
        'node node0: 1 rank'
    """
    instance("topology", topology, Topology)
    return "\n".join(_lines(topology))


def reach(topology: Topology, flows: int = 1) -> list[str]:
    """Return how rank 0 reaches the ranks of other nodes: a line for those that are as far.

    Where there are many, one is looked at of those that have the same seat at the same leaves.
    """
    found: Counter[str] = Counter()
    ways: dict[object, str] = {}
    many = topology.size > EACH and topology.uniform
    for rank, place in enumerate(topology.ranks):
        if place.node != topology.ranks[0].node:
            alike = topology.likeness.outlook(rank) if many else rank
            if alike not in ways:
                ways[alike] = _way(topology, rank, flows)
            found[ways[alike]] += 1
    return [f"rank 0 to {counted(n, 'rank')}: {how}" for how, n in found.items()]


def _way(t: Topology, rank: int, flows: int) -> str:
    try:
        routes, hops = t.routes(0, rank, flows), t.hops(0, rank)
    except UsageError:
        return "no link leads there"
    how = f"RDMA by {counted(len(routes), 'route')}" if routes[0].rdma else "no RDMA"
    speed = f"{t.bandwidth(0, rank, flows) / 1e9:.4g} GB/s"
    return f"{counted(hops, 'hop')}, {how}, {speed}, {t.latency(0, rank) * 1e6:.3g} us"


def _lines(t: Topology) -> Iterator[str]:
    for node in t.nodes:
        rack = f" in {node.rack}" if node.rack else ""
        yield f"node {node.name}{rack}{_ranks(t, node.name)}"
        for numa in node.sockets:
            yield f"  {_socket(numa)}{_ranks(t, node.name, numa.name)}"
            yield from _below(t, node, numa.name)
        if len(node.sockets) != 1 or any(p.socket is None for p in node.attached):
            yield from _below(t, node, None)
        for link in node.links:
            if link.kind != "pcie" and link.a != link.b:
                yield f"  {link.a} to {link.b}: {_link(link)}"
    for switch in t.switches:
        yield f"switch {switch.name}{_leaf(t, switch.name)}"
    for link in t.links:
        yield f"link {link.a} to {link.b}: {_link(link)}"
    yield from reach(t)


def _below(t: Topology, node: Node, socket: str | None) -> Iterator[str]:
    """Yield the NICs and devices next to one socket, or next to none that is known."""
    functions = {f.name: f for f in node.pci}
    for part in node.attached:
        if part.socket == socket:
            indent = "    " if socket else "  "
            text = _nic(part) + _rail(t, node, part) if isinstance(part, Nic) else _device(part)
            bus = functions.get(part.pci or "")
            ranks = _ranks(t, node.name, part.name)
            yield f"{indent}{text}{_bus(bus) if bus else ''}{ranks}"


def _socket(s: Socket) -> str:
    threads = f", {s.threads} threads" if s.threads and s.threads != s.cores else ""
    memory = f", {s.nbytes / 2**30:.1f} GiB" if s.nbytes else ""
    return f"{s.name}: {_known(s.cores)} cores{threads}{memory}"


def _nic(nic: Nic) -> str:
    speed = f"{nic.speed * 8 / 1e9:g} Gb/s" if nic.speed else "speed unknown"
    state = {True: "up", False: "down", None: "state unknown"}[nic.up]
    rdma = f", RDMA by {nic.rdma}" if nic.rdma else ""
    return f"{nic.name}: {nic.kind}, {speed}, {state}{rdma}"


def _rail(t: Topology, node: Node, nic: Nic) -> str:
    """Return the number of a rail that leads to a switch."""
    leaf = t.leaf(node.name, nic.name)
    return f", rail {t.rails(node.name).index(nic)} to {leaf}" if nic.is_rail and leaf else ""


def _leaf(t: Topology, switch: str) -> str:
    """Return what a leaf joins, and how much wider its links down are than those up."""
    down, up = t.wiring.down(switch), t.wiring.up(switch)
    if not down:
        return ""
    wide, narrow = (sum(link.bandwidth for link in links) for links in (down, up))
    text = f": leaf of {counted(len(down), 'port')}, {wide / 1e9:.4g} GB/s"
    return text + (f", and {narrow / 1e9:.4g} GB/s up ({wide / narrow:.3g} to 1)" if up else "")


def _device(device: Device) -> str:
    return f"{device.name}: {_known(device.vendor)} {device.model or ''}".rstrip()


def _bus(f: Pci) -> str:
    if f.width is None or f.speed is None:
        return f", PCI {f.name}"
    best = ""
    if (f.max_width, f.max_speed) not in ((f.width, f.speed), (None, None)):
        best = f" of x{_known(f.max_width)} at {_known(f.max_speed)}"
    return f", PCI {f.name}: x{f.width} at {f.speed:g} GT/s{best}"


def _link(link: Link) -> str:
    weight = "" if link.weight is None else f", weight {link.weight:g}"
    return f"{link.kind}, {link.latency * 1e6:g} us, {link.bandwidth / 1e9:g} GB/s{weight}"


def _known(value: object) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _ranks(t: Topology, node: str, at: str | None = None) -> str:
    """Return the ranks there: a few by number, more as a count."""
    found = [r for r, p in enumerate(t.ranks) if p.node == node and at in (None, p.at)]
    if not found:
        return ""
    if at is None or len(found) > 8:
        return f": {len(found)} rank{'s' * (len(found) > 1)}"
    return f", rank{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
