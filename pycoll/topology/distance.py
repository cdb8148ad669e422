"""How far two PCI functions are from each other, as a GPU and an RDMA card, by /sys alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

from pycoll.sysfs import CPUS, HOST, NUMA, PCI, RDMA, Sysfs
from pycoll.topology.pci import address_of

_ROOT = re.compile(r"pci[0-9a-f]+:[0-9a-f]+")
_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Distance(IntEnum):
    """What lies between, the nearest first; in brackets NVIDIA's names for it.

    What is not known comes last: nobody may count on its being near.
    """

    SWITCH = 0  #: a PCI switch, or several below one root port (PIX, PXB)
    ROOT = 1  #: a host bridge: the root complex of one PCI root (PHB)
    SOCKET = 2  #: host bridges of one socket (NODE)
    ACROSS = 3  #: the link between sockets (SYS)
    UNKNOWN = 4

    @property
    def text(self) -> str:
        """What a message says that both are at."""
        return _TEXTS[self]


_TEXTS = {
    Distance.SWITCH: "the same PCI switch",
    Distance.ROOT: "the same PCI root",
    Distance.SOCKET: "the same socket",
    Distance.ACROSS: "another socket",
    Distance.UNKNOWN: "a place that the firmware does not tell",
}


def address(bus_id: str) -> str:
    """Return a function's address as /sys has it, of a bus id as CUDA or nvidia-smi has it.

    Example:
        >>> address("00000000:1A:00.0")
        '0000:1a:00.0'
    """
    match = _BUS_ID.fullmatch(bus_id.strip().lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else ""


def between(one: str, other: str, sysfs: Sysfs = HOST) -> Distance:
    """Return the distance of two PCI functions.

    Args:
        one: Its bus id, such as a GPU's.
        other: Likewise.
        sysfs: Where ``sys`` lies.
    """
    ways = [sysfs.target(f"{PCI}/{address(end)}") if address(end) else () for end in (one, other)]
    if not all(ways):
        return Distance.UNKNOWN
    bridges = [{part for part in way[:-1] if address(part)} for way in ways]
    if bridges[0] & bridges[1] or ways[0] == ways[1]:
        return Distance.SWITCH
    roots = [next(filter(_ROOT.fullmatch, way), "") for way in ways]
    if roots[0] and roots[0] == roots[1]:
        return Distance.ROOT
    return _by_socket(sysfs, address(one), address(other))


def card(device: str, sysfs: Sysfs = HOST) -> str:
    """Return the address of an RDMA device's card, such as that of mlx5_0; "" if it has none."""
    return address_of(sysfs.target(f"{RDMA}/{device}/device"))


def from_gpu(
    bus_id: str, devices: Iterable[str], sysfs: Sysfs = HOST
) -> list[tuple[str, Distance]]:
    """Return RDMA devices and their distance from a GPU: the nearest first, else as they come.

    Args:
        bus_id: Of the GPU.
        devices: Names of RDMA devices, such as mlx5_0.
        sysfs: Where ``sys`` lies.
    """
    found = [(device, between(bus_id, card(device, sysfs), sysfs)) for device in devices]
    return sorted(found, key=lambda row: row[1])


def _by_socket(sysfs: Sysfs, one: str, other: str) -> Distance:
    nodes = [name for name in sysfs.names(NUMA) if re.fullmatch(r"node\d+", name)]
    if len(nodes) == 1:
        return Distance.SOCKET
    mine, theirs = (sysfs.count(f"{PCI}/{end}/numa_node") for end in (one, other))
    if mine is None or theirs is None:  # -1: the firmware does not say
        return Distance.UNKNOWN
    # A socket may be several NUMA nodes.
    packages = _package(sysfs, mine), _package(sysfs, theirs)
    same = mine == theirs or (None not in packages and packages[0] == packages[1])
    return Distance.SOCKET if same else Distance.ACROSS


def _package(sysfs: Sysfs, node: int) -> int | None:
    cpus = sysfs.ids(f"{NUMA}/node{node}/cpulist")
    return sysfs.count(f"{CPUS}/cpu{min(cpus)}/topology/physical_package_id") if cpus else None
