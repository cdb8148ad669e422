"""Port: a port of an RDMA device as /sys tells it, with its addresses and its interface."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pycoll.sysfs import NET, RDMA, Sysfs
from pycoll.topology.pci import address_of

_CA = 1  #: of the types of devices
ACTIVE = 4  #: of the states that /sys names with their numbers
_NOTHING = ":".join(["0000"] * 8)


@dataclass(frozen=True)
class Gid:
    """One of the addresses that a port has."""

    index: int
    address: ipaddress.IPv6Address
    kind: str | None  #: "IB/RoCE v1" or "RoCE v2"

    @property
    def routable(self) -> bool:
        """Whether it leads beyond the link: an IPv4 address, or an IPv6 one that is not fe80::."""
        return not self.address.is_link_local


@dataclass(frozen=True)
class Port:
    """One port; None is what cannot be read."""

    device: str
    number: int  #: from 1
    state: int | None
    physical: int | None  #: of the physical state: 2 polling, 3 disabled, 5 up
    states: str  #: both, as /sys has them
    layer: str | None  #: "InfiniBand" or "Ethernet"
    speed: float | None  #: bits per second each way
    width: int | None  #: lanes
    gids: tuple[Gid, ...]
    interface: str | None  #: the network interface that it shares its wire with
    pci: str | None  #: address of its card
    software: bool  #: no card at all, such as rxe or siw

    @property
    def name(self) -> str:
        """What a finding calls it."""
        return f"{self.device} port {self.number}"

    @property
    def folder(self) -> str:
        """Where /sys keeps it."""
        return f"{RDMA}/{self.device}/ports/{self.number}"

    @property
    def active(self) -> bool:
        """Whether it carries data."""
        return self.state == ACTIVE

    @property
    def ethernet(self) -> bool:
        """Whether its packets are RoCE and not InfiniBand's own."""
        return self.layer == "Ethernet"


def devices(sysfs: Sysfs) -> tuple[list[str], list[str]]:
    """Return the devices that speak InfiniBand or RoCE, and the others, such as iWARP and EFA."""
    names = sysfs.names(RDMA)
    ours = [name for name in names if sysfs.count(f"{RDMA}/{name}/node_type") in (_CA, None)]
    return ours, [name for name in names if name not in ours]


def ports(sysfs: Sysfs) -> tuple[Port, ...]:
    """Return every port of every device that speaks InfiniBand or RoCE."""
    return tuple(
        _port(sysfs, device, int(number))
        for device in devices(sysfs)[0]
        for number in sysfs.names(f"{RDMA}/{device}/ports")
        if number.isdecimal()
    )


def _port(sysfs: Sysfs, device: str, number: int) -> Port:
    folder = f"{RDMA}/{device}/ports/{number}"
    state, physical = sysfs.text(f"{folder}/state"), sysfs.text(f"{folder}/phys_state")
    gigabits = sysfs.number(f"{folder}/rate")
    width = re.search(r"\((\d+)X", sysfs.text(f"{folder}/rate") or "")
    return Port(
        device,
        number,
        sysfs.count(f"{folder}/state"),
        sysfs.count(f"{folder}/phys_state"),
        f"{state or 'unknown'} ({physical or 'unknown'})",
        sysfs.text(f"{folder}/link_layer"),
        gigabits * 1e9 if gigabits and gigabits > 0 else None,
        int(width[1]) if width else None,
        tuple(_gids(sysfs, folder)),
        _interface(sysfs, device, number),
        address_of(sysfs.target(f"{RDMA}/{device}/device")) or None,
        "virtual" in sysfs.target(f"{RDMA}/{device}"),
    )


def _gids(sysfs: Sysfs, folder: str) -> Iterator[Gid]:
    for index in sysfs.names(f"{folder}/gids"):
        text = sysfs.text(f"{folder}/gids/{index}")
        if text is None or text == _NOTHING or not index.isdecimal():
            continue
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            continue
        yield Gid(int(index), address, sysfs.text(f"{folder}/gid_attrs/types/{index}"))


def _interface(sysfs: Sysfs, device: str, number: int) -> str | None:
    """Return the interface of a port: of a card with several, the one with the port's number."""
    for index in sysfs.names(f"{RDMA}/{device}/ports/{number}/gid_attrs/ndevs"):
        found = sysfs.text(f"{RDMA}/{device}/ports/{number}/gid_attrs/ndevs/{index}")
        if found is not None:
            return found
        if index == "7":  # nothing is there: the table has hundreds of empty places
            break
    own = sysfs.names(f"{RDMA}/{device}/device/net")
    for name in own:
        if sysfs.count(f"{NET}/{name}/dev_port") == number - 1:
            return name
    return own[0] if own else sysfs.text(f"{RDMA}/{device}/parent")
