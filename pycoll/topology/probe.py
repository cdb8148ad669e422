"""This machine as a Node, from /sys alone. Link latencies are typical; no file tells them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pycoll.arguments import filename
from pycoll.sysfs import CPUS, NET, NUMA, RDMA, Sysfs
from pycoll.topology.clusters import BRIDGE, MEMORY, PCIE
from pycoll.topology.model import Device, Link, Nic, Node, Pci, Socket
from pycoll.topology.pci import VENDORS, address_of, functions

ETHERNET, INFINIBAND = 1, 32  #: what /sys/class/net/*/type says (ARPHRD_*)


def probe(root: str | Path = "/", name: str = "localhost") -> Node:
    """Return what this machine says of itself; what cannot be read is None or left out.

    Args:
        root: Folder that has the machine's ``sys``.
        name: What the node is called.

    Returns:
        The node, of which a `Topology` can be made.

    Raises:
        UsageError: ``root`` is no path, or ``name`` no text.

    Example:
        >>> topology.probe(name="here").name
        'here'
    """
    sysfs = Sysfs(filename("root", root))
    sockets = _sockets(sysfs)
    pci = functions(sysfs, {s.name for s in sockets})
    node = Node(name, sockets, _devices(pci), _nics(sysfs, pci))
    # Of the bus only what NICs and devices hang on.
    bridges = _bridges(pci, node)
    used = bridges | {part.pci for part in node.attached}
    links = _memory_links(sysfs, sockets)
    links += [_down(sockets, pci[bridge], bridge) for bridge in sorted(bridges)]
    links += [_down(sockets, pci[part.pci], part.name) for part in node.attached if part.pci]
    functions_used = tuple(f for f in pci.values() if f.name in used)
    return replace(node, pci=functions_used, links=tuple(links))


def _sockets(sysfs: Sysfs) -> tuple[Socket, ...]:
    numbers = [n for n in sysfs.names(NUMA) if n.startswith("node") and n[4:].isdecimal()]
    found = []
    for number in numbers:
        cpus = sysfs.ids(f"{NUMA}/{number}/cpulist")
        nbytes = sysfs.nbytes(f"{NUMA}/{number}/meminfo", "MemTotal")
        found.append(
            Socket(f"socket{number[4:]}", _cores(sysfs, cpus), len(cpus) if cpus else None, nbytes)
        )
    if found:
        return tuple(found)
    cpus = sysfs.ids(f"{CPUS}/online")  # a kernel without NUMA
    return (Socket("socket0", _cores(sysfs, cpus), len(cpus) if cpus else None),)


def _cores(sysfs: Sysfs, cpus: frozenset[int] | None) -> int | None:
    if not cpus:
        return None
    siblings = {sysfs.ids(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    return None if None in siblings else len(siblings)


def _nics(sysfs: Sysfs, pci: dict[str, Pci]) -> tuple[Nic, ...]:
    rdma = _rdma(sysfs)
    nics = []
    for name in sysfs.names(NET):
        kind = {ETHERNET: "ethernet", INFINIBAND: "infiniband"}.get(
            sysfs.count(f"{NET}/{name}/type") or 0
        )
        state = sysfs.text(f"{NET}/{name}/operstate")
        virtual = "virtual" in sysfs.target(f"{NET}/{name}")
        if kind is None or (virtual and state != "up" and name not in rdma):
            continue  # loopback and the kernel's spare interfaces
        megabits = sysfs.number(f"{NET}/{name}/speed")
        address = address_of(sysfs.target(f"{NET}/{name}/device"))
        device = rdma.pop(name, None)
        up = {"up": True, "down": False}.get(state or "")
        if device is not None and kind == "infiniband":
            # RDMA needs no IP interface there, so that may be down.
            active = _active(sysfs, device)
            up = up if active is None else active
        nics.append(
            Nic(
                name,
                kind,
                megabits * 1e6 / 8 if megabits and megabits > 0 else None,
                up,
                pci[address].socket if address in pci else None,
                address if address in pci else None,
                device,
            )
        )
    alone = [
        _rdma_only(sysfs, device, pci) for device in sorted(rdma.values())
    ]  # InfiniBand without an IP interface
    return (*nics, *alone)


def _rdma(sysfs: Sysfs) -> dict[str, str]:
    """Return the RDMA device of each network interface; one without any stands for itself."""
    found = {}
    for device in sysfs.names(RDMA):
        own = sysfs.names(f"{RDMA}/{device}/device/net")
        parent = sysfs.text(f"{RDMA}/{device}/parent")  # software RDMA on top of an interface
        found[own[0] if own else parent or device] = device
    return found


def _rdma_only(sysfs: Sysfs, device: str, pci: dict[str, Pci]) -> Nic:
    port = f"{RDMA}/{device}/ports/1"
    gigabits = sysfs.number(f"{port}/rate")
    layer = sysfs.text(f"{port}/link_layer")
    address = address_of(sysfs.target(f"{RDMA}/{device}/device"))
    return Nic(
        device,
        "ethernet" if layer == "Ethernet" else "infiniband",
        gigabits * 1e9 / 8 if gigabits and gigabits > 0 else None,
        _active(sysfs, device),
        pci[address].socket if address in pci else None,
        address if address in pci else None,
        device,
    )


def _active(sysfs: Sysfs, device: str) -> bool | None:
    """Return whether the first port of an RDMA device carries data."""
    state = sysfs.text(f"{RDMA}/{device}/ports/1/state")
    return None if state is None else "ACTIVE" in state


def _devices(pci: dict[str, Pci]) -> tuple[Device, ...]:
    displays = [f for f in pci.values() if f.what == "display"]
    return tuple(
        Device(f"gpu{i}", VENDORS.get(f.vendor or "", f.vendor), f.device, f.socket, f.name)
        for i, f in enumerate(displays)
    )


def _bridges(pci: dict[str, Pci], node: Node) -> set[str]:
    above: set[str] = set()
    for part in node.attached:
        parent = pci[part.pci].parent if part.pci else None
        while parent is not None and parent not in above:
            above.add(parent)
            parent = pci[parent].parent
    return above


def _memory_links(sysfs: Sysfs, sockets: tuple[Socket, ...]) -> list[Link]:
    links = [Link(s.name, s.name, *MEMORY) for s in sockets]
    for i, a in enumerate(sockets):
        row = (sysfs.text(f"{NUMA}/node{a.name.removeprefix('socket')}/distance") or "").split()
        for j, b in enumerate(sockets[i + 1 :], i + 1):
            # The kernel's distances say 10 for the own memory: 21 is 2.1 times as far.
            far = int(row[j]) / 10 if len(row) == len(sockets) and row[j].isdecimal() else 2.0
            latency = BRIDGE.latency * max(far, 1.0) / 2
            links.append(Link(a.name, b.name, latency, BRIDGE.bandwidth, BRIDGE.kind))
    return links


def _down(sockets: tuple[Socket, ...], function: Pci, name: str) -> Link:
    """Return the link that leads down to a function, or to what it is."""
    above = function.parent or function.socket or sockets[0].name
    latency = PCIE.latency if function.parent is None else 100e-9
    return Link(above, name, latency, function.bandwidth or PCIE.bandwidth, PCIE.kind)
