"""PCI links of network cards and GPUs: fewer lanes, or slower ones, than card and slot have."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, bad, ok, problem, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.sysfs import PCI
from pycoll.topology import Pci


def slot(machine: Machine) -> Iterator[Finding]:
    """Say whether each card's link runs as card and slot can, and carries what its ports do."""
    seen: set[str] = set()
    for address in machine.cards:
        card = address.rpartition(".")[0]
        if card not in seen and not _virtual(machine, address):
            yield _network(machine, machine.functions[address])
        seen.add(card)  # the functions of a card share its link
    for gpu in machine.gpus:
        if not _virtual(machine, gpu.name):
            yield _gpu(machine, gpu)


def _virtual(machine: Machine, address: str) -> bool:
    return (machine.root / PCI / address / "physfn").exists()


def _network(machine: Machine, function: Pci) -> Finding:
    where = f"{function.name} ({_devices(machine, function)})"
    could, own = _could(machine, function), _own(function)
    has, may, most = function.bandwidth, could.bandwidth, own.bandwidth
    if has is None or may is None or most is None:
        return _unknown(where, function)
    needed = _needed(machine, function)
    tight = has * 8 < needed
    got = f"{_link(function)}, {has * 8 / 1e9:.0f} Gb/s"
    short = f"; its ports send {needed / 1e9:g} Gb/s each way" if tight else ""
    if has < may * 0.99:
        return bad(
            tight,
            where,
            f"its PCI link runs below what card and slot can{short}",
            got=got,
            wanted=_link(could),
            cure="seat the card anew, look at riser and BIOS (link speed: auto); lspci -vv -s "
            f"{function.name} | grep -e LnkCap -e LnkSta",
        )
    if tight and may < most:
        return problem(
            where,
            f"its slot is narrower than the card{short}",
            got=got,
            wanted=_link(own),
            cure=f"move the card to a slot with x{own.width} at {own.speed:g} GT/s",
        )
    return ok(where, got)


def _needed(machine: Machine, function: Pci) -> float:
    """Return the bits per second that all ports of a card send."""
    card = function.name.rpartition(".")[0]
    ports = (
        port
        for address, some in machine.cards.items()
        if address.rpartition(".")[0] == card
        for port in some
    )
    return sum(port.speed or 0 for port in ports if port.active)


def _gpu(machine: Machine, function: Pci) -> Finding:
    """Look at the lanes only: an idle GPU slows its link down to save power."""
    where = f"{function.name} (GPU)"
    could = _could(machine, function)
    if function.width is None or could.width is None:
        return _unknown(where, function)
    if function.width < could.width:
        return warning(
            where,
            "its PCI link has fewer lanes than card and slot",
            got=f"x{function.width}",
            wanted=f"x{could.width}",
            cure=f"seat the card anew and look at riser and BIOS; lspci -vv -s {function.name} "
            "| grep -e LnkCap -e LnkSta",
        )
    return ok(where, f"x{function.width}")


def _own(function: Pci) -> Pci:
    """Return the link that a card could have."""
    return Pci(function.name, width=function.max_width, speed=function.max_speed)


def _could(machine: Machine, function: Pci) -> Pci:
    """Return the link that card and slot could have."""
    own, above = _own(function), machine.functions.get(function.parent or "")
    if above is None:
        return own
    return Pci(
        function.name,
        width=own.width and min(own.width, above.max_width or own.width),
        speed=own.speed and min(own.speed, above.max_speed or own.speed),
    )


def _unknown(where: str, function: Pci) -> Finding:
    return unknown(
        where,
        "its PCI link cannot be read, as in virtual machines",
        cure=f"on the host: lspci -vv -s {function.name} | grep -e LnkCap -e LnkSta",
    )


def _devices(machine: Machine, function: Pci) -> str:
    return ", ".join(dict.fromkeys(port.device for port in machine.cards[function.name]))


def _link(function: Pci) -> str:
    return f"x{function.width} at {function.speed:g} GT/s"
