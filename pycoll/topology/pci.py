"""The PCI functions of this machine and how they hang together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pycoll.sysfs import PCI, Sysfs
from pycoll.topology.model import Pci

#: First byte of a function's class.
CLASSES = {0x01: "storage", 0x02: "network", 0x03: "display", 0x06: "bridge", 0x12: "display"}
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x15b3": "Mellanox"}

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def address_of(parts: Sequence[str]) -> str:
    """Return the last PCI address on a path; "" where there is none."""
    return next((part for part in reversed(parts) if _ADDRESS.fullmatch(part)), "")


def functions(sysfs: Sysfs, sockets: set[str]) -> dict[str, Pci]:
    """Return every function by its address."""
    found = {}
    for address in sysfs.names(PCI):
        if _ADDRESS.fullmatch(address):
            found[address] = _function(sysfs, address, sockets)
    # A parent that has no entry of its own would leave a link that ends nowhere.
    return {name: f if f.parent in found else replace(f, parent=None) for name, f in found.items()}


def _function(sysfs: Sysfs, address: str, sockets: set[str]) -> Pci:
    folder = f"{PCI}/{address}"
    numa = sysfs.count(f"{folder}/numa_node")  # -1: the firmware does not say
    socket = f"socket{numa}" if numa is not None else None
    if socket not in sockets:
        socket = next(iter(sockets)) if len(sockets) == 1 else None
    return Pci(
        address,
        address_of(sysfs.target(folder)[:-1]) or None,
        socket,
        _what(sysfs.text(f"{folder}/class")),
        sysfs.text(f"{folder}/vendor"),
        sysfs.text(f"{folder}/device"),
        _width(sysfs.count(f"{folder}/current_link_width")),
        _width(sysfs.count(f"{folder}/max_link_width")),
        _speed(sysfs.number(f"{folder}/current_link_speed")),
        _speed(sysfs.number(f"{folder}/max_link_speed")),
    )


def _what(text: str | None) -> str:
    try:
        return CLASSES.get(int(text or "0", 16) >> 16, "other")
    except ValueError:
        return "other"


def _width(lanes: int | None) -> int | None:
    return lanes if lanes in (1, 2, 4, 8, 12, 16, 32) else None  # 0 and 255: no link


def _speed(transfers: float | None) -> float | None:
    return transfers if transfers is not None and transfers > 0 else None
