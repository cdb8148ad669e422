"""Rails of one model: what differs between them shows which one is ill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from pycoll.doctor.finding import Finding, ok, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port
from pycoll.sysfs import NET, RDMA


def alike(machine: Machine) -> Iterator[Finding]:
    """Compare speed, MTU and firmware of the rails whose cards are of one model."""
    models: dict[tuple[str | None, ...], list[Port]] = defaultdict(list)
    for port in machine.rails:
        if port.pci in machine.functions:
            card = machine.functions[port.pci]
            models[card.vendor, card.device, port.layer].append(port)
    groups = [group for group in models.values() if len(group) > 1]
    for group in groups:
        found = [finding for look in _LOOKS if (finding := look(machine, group))]
        yield from found
        if not found:
            yield ok(", ".join(port.name for port in group), "same speed, MTU and firmware")


def _differ(
    group: list[Port], values: list[str | None], what: str, wanted: str, cure: str
) -> Finding | None:
    if len({value for value in values if value is not None}) < 2:
        return None
    pairs = zip(group, values, strict=True)
    got = ", ".join(f"{port.name} {value or 'unknown'}" for port, value in pairs)
    where = ", ".join(port.name for port in group)
    return warning(where, what, got=got, wanted=wanted, cure=cure)


def _speed(machine: Machine, group: list[Port]) -> Finding | None:
    speeds = [f"{port.speed / 1e9:g} Gb/s" if port.speed else None for port in group]
    slowest = min(group, key=lambda port: port.speed or float("inf"))
    return _differ(
        group,
        speeds,
        "rails of one model run at different speeds",
        "the same speed",
        f"ethtool {slowest.interface}; look at the cable and the switch's port of {slowest.name}"
        if slowest.ethernet
        else f"iblinkinfo; look at the cable and the switch's port of {slowest.name}",
    )


def _mtu(machine: Machine, group: list[Port]) -> Finding | None:
    sizes = [machine.sysfs.text(f"{NET}/{p.interface}/mtu") if p.ethernet else None for p in group]
    smallest = min(zip(sizes, group, strict=True), key=lambda row: int(row[0] or "9" * 9))[1]
    return _differ(
        group,
        sizes,
        "interfaces of the rails have different MTUs, so that paths between hosts have too",
        "the same MTU",
        f"ip link set dev {smallest.interface} mtu 9000",
    )


def _firmware(machine: Machine, group: list[Port]) -> Finding | None:
    return _differ(
        group,
        [machine.sysfs.text(f"{RDMA}/{port.device}/fw_ver") for port in group],
        "cards of one model have different firmware",
        "the same firmware",
        "mlxfwmanager --online -u (other vendors: the tool of theirs), then reboot",
    )


_LOOKS: tuple[Callable[[Machine, list[Port]], Finding | None], ...] = (_speed, _mtu, _firmware)
