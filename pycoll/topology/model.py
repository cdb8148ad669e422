"""What a machine or a cluster is made of; pure data, with names in place of references.

Nothing here is measured. None stands for what nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pycoll.arguments import named, require_fields
from pycoll.errors import UsageError, counted


@dataclass(frozen=True)
class Link:
    """A full-duplex connection; a link from a socket to itself is that socket's memory."""

    a: str
    b: str
    latency: float  #: seconds for the first byte
    bandwidth: float  #: bytes per second, each way
    kind: str  #: "memory", "bridge" (between sockets), "pcie", "ethernet", "infiniband", ...
    weight: float | None = None  #: of the flows that a switch spreads over equal ways; None: 1

    def __post_init__(self) -> None:
        require_fields(self)
        for name in ("bandwidth", "weight"):
            if getattr(self, name) == 0:
                raise UsageError(f"{named(self)}: {name} is 0, want more than 0")

    @property
    def inner(self) -> bool:
        """Whether it joins two switches."""
        return "/" not in self.a and "/" not in self.b

    def reverse(self) -> Link:
        """Return the other direction."""
        return replace(self, a=self.b, b=self.a)


@dataclass(frozen=True)
class Socket:
    """A NUMA node: cores and the memory next to them."""

    name: str
    cores: int | None = None
    threads: int | None = None
    nbytes: int | None = None  #: of memory

    def __post_init__(self) -> None:
        require_fields(self)


@dataclass(frozen=True)
class Pci:
    """A function on the PCI tree: a bridge, or what a Nic or a Device is to the bus."""

    name: str  #: the address, such as 0000:3b:00.0
    parent: str | None = None  #: address of the bridge above; None at a root
    socket: str | None = None
    what: str = "other"  #: "bridge", "network", "display", "storage" or "other"
    vendor: str | None = None
    device: str | None = None
    width: int | None = None  #: lanes in use
    max_width: int | None = None
    speed: float | None = None  #: GT/s of a lane in use
    max_speed: float | None = None

    def __post_init__(self) -> None:
        require_fields(self)

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second each way of the link to the bridge above, as it runs now."""
        if self.width is None or self.speed is None:
            return None
        payload = 8 / 10 if self.speed < 8 else 128 / 130 if self.speed < 64 else 242 / 256
        return self.speed * 1e9 * self.width * payload / 8


@dataclass(frozen=True)
class Device:
    """An accelerator or another display controller."""

    name: str
    vendor: str | None = None
    model: str | None = None
    socket: str | None = None
    pci: str | None = None

    def __post_init__(self) -> None:
        require_fields(self)


@dataclass(frozen=True)
class Nic:
    """A network interface."""

    name: str
    kind: str = "ethernet"  #: of the link layer: "ethernet" or "infiniband"
    speed: float | None = None  #: bytes per second each way
    up: bool | None = None
    socket: str | None = None
    pci: str | None = None
    rdma: str | None = None  #: name of its RDMA device

    def __post_init__(self) -> None:
        require_fields(self)

    @property
    def is_rail(self) -> bool:
        """Whether RDMA can go by it: it has an RDMA device, or is InfiniBand, and is not down."""
        return (self.rdma is not None or self.kind == "infiniband") and self.up is not False


@dataclass(frozen=True)
class Switch:
    """Joins links between nodes; forwards without limit of its own.

    One that joins nodes is a leaf, one that joins only switches is above them, a spine.
    """

    name: str

    def __post_init__(self) -> None:
        require_fields(self)


@dataclass(frozen=True)
class Node:
    """One host. Its links name its own parts, so a node can be copied under another name."""

    name: str
    sockets: tuple[Socket, ...] = ()
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    pci: tuple[Pci, ...] = ()
    links: tuple[Link, ...] = ()
    rack: str | None = None

    def __post_init__(self) -> None:
        require_fields(self)

    def __repr__(self) -> str:
        parts = {"socket": self.sockets, "NIC": self.nics, "device": self.devices}
        text = ", ".join(counted(len(found), noun) for noun, found in parts.items())
        return f"<topology.Node {self.name}: {text}>"

    @property
    def attached(self) -> tuple[Nic | Device, ...]:
        """What hangs on a bus."""
        return (*self.nics, *self.devices)

    def parts(self) -> Iterator[str]:
        """Yield the names that a link may have for its ends."""
        for kind in (self.sockets, self.devices, self.nics, self.pci):
            yield from (part.name for part in kind)


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    node: str
    at: str  #: name of a socket, or of a device
    rails: tuple[str, ...] = ()  #: names of the NICs that it uses; empty: those near to it

    def __post_init__(self) -> None:
        require_fields(self)


def within(node: str, part: str) -> str:
    """Return the name of a node's part outside that node."""
    return f"{node}/{part}"
