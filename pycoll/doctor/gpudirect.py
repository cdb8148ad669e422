"""GPUDirect RDMA: for each GPU and RDMA card, whether a page of its memory can be registered."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pycoll.doctor import acs, iommu
from pycoll.doctor.finding import Finding, Level, ok, unknown, warning
from pycoll.doctor.machine import Machine, Registration
from pycoll.errors import PycollError
from pycoll.sysfs import PCI
from pycoll.topology import Pci
from pycoll.topology.distance import between

NVIDIA = "0x10de"
_PAGE = "docs/gpudirect.md"
#: What NVIDIA's cards have where the BIOS does not let it be as large as their memory.
_SMALL = 256 << 20
_MEMORY_BAR = 0x200  #: of the flags that /sys gives: IORESOURCE_MEM
_BARS = 6


def gpudirect(machine: Machine) -> Iterator[Finding]:
    """Register a page of each GPU with each card; what is not tried is not known."""
    for gpu in _gpus(machine):
        for card, ports in machine.cards.items():
            yield _pair(machine, gpu, card, ports[0].device)


def bar1(machine: Machine) -> Iterator[Finding]:
    """Say how much of each GPU's memory cards can reach at a time."""
    if not machine.cards:
        return
    for gpu in _gpus(machine):
        where, size = f"{gpu.name} (GPU)", _bar1(machine, gpu)
        if size is None:
            yield unknown(
                where,
                "nothing says how large its BAR1 is",
                cure="nvidia-smi -q -d MEMORY | grep -A3 BAR1",
            )
        elif size <= _SMALL:
            yield warning(
                where,
                "RDMA cards reach little of its memory at a time: registrations beyond it fail",
                got=f"BAR1 of {_amount(size)}",
                wanted="BAR1 as large as its memory",
                cure="Above 4G Decoding and Resizable BAR in the BIOS; on some workstation cards "
                "NVIDIA's displaymodeselector",
            )
        else:
            yield ok(where, f"BAR1 of {_amount(size)}")


def _gpus(machine: Machine) -> list[Pci]:
    return [gpu for gpu in machine.gpus if gpu.vendor == NVIDIA]


def _pair(machine: Machine, gpu: Pci, card: str, device: str) -> Finding:
    where, about = f"{gpu.name} (GPU) and {device}", _about(machine, gpu, card)
    try:
        if machine.registers is None:
            raise PycollError("pycoll's engine is not there to try it: see the check engine")
        found = machine.registers(gpu.name, device)
    except PycollError as error:
        why, _, cure = str(error).rpartition(": ")
        return unknown(
            where,
            f"nothing was registered ({why or cure}); {about}",
            cure=f"{cure}; see {_PAGE}" if why else f"see {_PAGE}",
        )
    if found.dmabuf and found.peermem:
        reasons = {"dma-buf": found.dmabuf, "nvidia_peermem": found.peermem}
        parted = {way: reason.rpartition(": ") for way, reason in reasons.items()}
        return warning(
            where,
            f"a page of its memory cannot be registered, so data goes through the host's; {about}",
            got="; ".join(f"{way}: {what or cure}" for way, (what, _, cure) in parted.items()),
            wanted="either of the two",
            cure=f"{', or '.join(cure for _, _, cure in parted.values())}; see {_PAGE}",
        )
    return ok(where, f"{_done(found)}; {about}")


def _done(found: Registration) -> str:
    ways = [("by dma-buf", found.dmabuf), ("by nvidia_peermem", found.peermem)]
    done = " and ".join(way for way, reason in ways if not reason)
    failed = "".join(f", not {way} ({reason})" for way, reason in ways if reason)
    return f"a page of its memory was registered {done}{failed}; flush: {found.flush}"


def _about(machine: Machine, gpu: Pci, card: str) -> str:
    """Return what else decides whether this works, and how fast, as far as it can be read."""
    size, kernel = _bar1(machine, gpu), machine.kernel()
    return "; ".join(
        [
            f"{between(gpu.name, card, machine.sysfs).text}",
            _acs(machine, gpu.name, card),
            _iommu(machine, gpu.name, card),
            f"BAR1 {_amount(size) if size is not None else 'not known'}",
            f"Linux {kernel[0]}.{kernel[1]}" if kernel else "Linux not known",
            _driver(machine),
        ]
    )


def _acs(machine: Machine, gpu: str, card: str) -> str:
    controls = [acs.control(machine, bridge) for bridge in acs.bridges(machine, gpu, card)]
    if any(control and acs.redirects(control) for control in controls):
        return "ACS redirects"
    return "ACS not known" if None in controls else "no ACS redirect"


def _iommu(machine: Machine, *addresses: str) -> str:
    levels = {iommu.of(machine, address).level for address in addresses}
    if Level.WARNING in levels:
        return "IOMMU translates"
    return "IOMMU not known" if Level.UNKNOWN in levels else "no IOMMU translation"


def _bar1(machine: Machine, gpu: Pci) -> int | None:
    """Return the bytes of the window onto a GPU's memory: the largest that it has."""
    sizes = []
    text = machine.sysfs.text(f"{PCI}/{gpu.name}/resource") or ""
    for line in text.splitlines()[:_BARS]:
        if not re.fullmatch(r"(0x[0-9a-f]{1,16}\s*){3}", line):
            return None
        first, last, flags = (int(word, 16) for word in line.split())
        if flags & _MEMORY_BAR and last > first:
            sizes.append(last - first + 1)
    return max(sizes, default=None)


def _amount(nbytes: int) -> str:
    gib = nbytes >> 30
    return f"{gib} GiB" if gib else f"{nbytes >> 20} MiB"


def _driver(machine: Machine) -> str:
    text = machine.sysfs.text("proc/driver/nvidia/version", 4096) or ""
    number = re.search(r"\b\d{3,4}\.\d{1,4}(\.\d{1,4})?\b", text)
    kind = "open" if "Open Kernel Module" in text else "proprietary"
    return f"NVIDIA's driver {number[0]}, {kind}" if number else "NVIDIA's driver not known"
