"""Machine: everything that the checks look at, below a root that tests can make up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pycoll.doctor.port import Port, ports
from pycoll.fabric import Fabric
from pycoll.sysfs import PCI, Sysfs
from pycoll.topology import Node, Pci, probe
from pycoll.topology.pci import functions


class Attributes(NamedTuple):
    """What libibverbs says of a port beyond what stands in /sys."""

    device: str
    port: int
    mtu: int  #: bytes of a packet's data, as the link runs; 0: the device could not be opened
    max_mtu: int


class Registration(NamedTuple):
    """What came of registering a page of a GPU's memory with an RDMA card; "" where it was done."""

    dmabuf: str  #: by dma-buf; what mends it stands behind the last ": "
    peermem: str  #: by its address, with nvidia_peermem; likewise
    flush: str  #: what makes the card's writes visible to the GPU: "none", or by what


def openable(path: Path) -> str:
    """Open a device as a program would; return the name of the error, "" if it can be opened."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return ""


def _nobody(interface: str) -> int | None:
    return None


def _at_once() -> None:
    return None


@dataclass(frozen=True)
class Machine:
    """Files below a root, and the few facts that are in no file."""

    root: Path = Path("/")
    #: Why pycoll's engine is not there; "" if it is.
    engine: str = ""
    #: Why pycoll cannot use RDMA verbs; "" if it can.
    missing: str = ""
    #: Of libfabric, for RDMA hardware, or "missing: " and why none; None when it was not asked.
    provider: str | None = None
    #: Of every port that libibverbs lists; None when it could not be asked.
    attributes: tuple[Attributes, ...] | None = None
    #: How pycoll would send packets.
    fabric: Fabric = field(default_factory=Fabric)
    #: The interface that the settings name for TCP.
    iface: str | None = None
    #: Opens a device; returns the name of the error.
    opens: Callable[[Path], str] = openable
    #: The priorities of an interface that PFC keeps lossless, a bit for each; None: unknown.
    lossless: Callable[[str], int | None] = _nobody
    #: Registers a page of a GPU, by its PCI address, with an RDMA device; PycollError says why
    #: nothing could be tried. None: there is nobody to try it.
    registers: Callable[[str, str], Registration] | None = None
    #: Lets the time pass in which counters may grow.
    pause: Callable[[], None] = _at_once

    @cached_property
    def sysfs(self) -> Sysfs:
        """The files, by path without the leading slash."""
        return Sysfs(self.root)

    @cached_property
    def node(self) -> Node:
        """Sockets, interfaces, GPUs and how they hang together."""
        return probe(self.root)

    @cached_property
    def functions(self) -> dict[str, Pci]:
        """Every PCI function by its address."""
        return functions(self.sysfs, {near.name for near in self.node.sockets})

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Every port of every RDMA device that pycoll can use."""
        return ports(self.sysfs)

    @property
    def rails(self) -> tuple[Port, ...]:
        """The ports that carry data."""
        return tuple(port for port in self.ports if port.active)

    @cached_property
    def cards(self) -> dict[str, tuple[Port, ...]]:
        """The ports of each PCI function that is an RDMA device, by address."""
        found: dict[str, tuple[Port, ...]] = {}
        for port in self.ports:
            if port.pci in self.functions:
                found[port.pci] = (*found.get(port.pci, ()), port)
        return found

    @cached_property
    def gpus(self) -> tuple[Pci, ...]:
        """The PCI functions that compute: no graphics of a board or of a CPU."""
        return tuple(f for f in self.functions.values() if self._computes(f))

    def above(self, address: str) -> list[str]:
        """Return the bridges above a PCI function, the nearest first."""
        found: list[str] = []
        parent = self.functions[address].parent
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.functions[parent].parent
        return found

    def kernel(self) -> tuple[int, int] | None:
        """Return the first two numbers of the kernel's version."""
        release = self.sysfs.text("proc/sys/kernel/osrelease") or ""
        major, _, rest = release.partition(".")
        minor = rest.partition(".")[0].partition("-")[0]
        if not (major.isdecimal() and minor.isdecimal() and len(major + minor) < 9):
            return None
        return int(major), int(minor)

    def words(self) -> list[str]:
        """Return the words of the kernel's command line."""
        return (self.sysfs.text("proc/cmdline") or "").split()

    def module(self, *names: str) -> str:
        """Return the first of some kernel modules that is loaded; "" if none is."""
        loaded = (name for name in names if (self.root / "sys/module" / name).is_dir())
        return next(loaded, "")

    def _computes(self, function: Pci) -> bool:
        kind = (self.sysfs.text(f"{PCI}/{function.name}/class") or "")[:6]
        if function.vendor == "0x10de":  # NVIDIA
            return kind in ("0x0300", "0x0302")
        # AMD and Intel: 0x0300 may be the graphics of the CPU.
        return function.vendor in ("0x1002", "0x8086") and kind in ("0x0302", "0x0380", "0x1200")
