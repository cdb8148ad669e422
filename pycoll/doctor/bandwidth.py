"""Bandwidth of each rail to itself, against what its link is said to carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port
from pycoll.errors import PycollError

#: What a sound card reaches at least of its line rate, after headers and its PCI link.
GOOD = 0.8


def bandwidth(machine: Machine, measure: Callable[[Port], float]) -> Iterator[Finding]:
    """Measure every rail.

    Args:
        machine: Whose rails.
        measure: Returns bytes per second of RDMA WRITE from a port to itself.
    """
    if not machine.rails:
        yield ok("this machine", "no active RDMA port to measure")
    for port in machine.rails:
        try:
            bits = measure(port) * 8
        except PycollError as error:
            yield unknown(port.name, f"cannot be measured: {error}", cure="see the other checks")
            continue
        got = f"{bits / 1e9:.3g} Gb/s"
        if port.software or port.speed is None:
            why = "software, no line rate" if port.software else "line rate unknown"
            yield ok(port.name, f"{got} to itself ({why})")
        elif bits < GOOD * port.speed:
            yield warning(
                port.name,
                "carries less to itself than its link should",
                got=got,
                wanted=f"at least {GOOD * port.speed / 1e9:g} of {port.speed / 1e9:g} Gb/s",
                cure="see the checks slot, iommu, mtu and distance; bind the command to cores "
                "next to the card",
            )
        else:
            yield ok(port.name, f"{got} to itself, of {port.speed / 1e9:g} Gb/s")
