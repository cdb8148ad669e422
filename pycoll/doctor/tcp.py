"""TCP between hosts: which of the interfaces it goes by."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.sysfs import NET

_UP = 1  #: flag of a route


def tcp(machine: Machine) -> Iterator[Finding]:
    """Compare the interface that TCP would go by with the fastest one that has an IPv4 address."""
    text = machine.sysfs.text("proc/net/route")
    if text is None:
        yield unknown("TCP", "routes cannot be read", cure="ip route")
        return
    routes = [line.split() for line in text.splitlines()[1:]]
    usable = [
        (row[0], row[1])
        for row in routes
        if len(row) > 3 and row[0] != "lo" and row[3].isalnum() and int(row[3], 16) & _UP
    ]
    names = list(dict.fromkeys(name for name, _ in usable))
    if not names:
        yield warning(
            "TCP",
            "no other host can be reached",
            got="no IPv4 route but loopback's",
            wanted="an interface with an IPv4 address",
            cure="ip addr add ADDRESS/24 dev INTERFACE && ip link set dev INTERFACE up",
        )
        return
    default = next((name for name, target in usable if target == "00000000"), names[0])
    chosen = machine.iface if machine.iface in names else default
    speeds = {name: _speed(machine, name) for name in names}
    fastest = max(names, key=lambda name: speeds[name] or 0)
    faster = (speeds[fastest] or 0) > (speeds[chosen] or float("inf"))
    if machine.iface is None and faster:
        yield warning(
            chosen,
            "jobs that are started by it use it, and there is a faster interface",
            got=_shown(speeds[chosen]),
            wanted=f"{fastest}, {_shown(speeds[fastest])}",
            cure=f"PYCOLL_IFACE={fastest}",
        )
    else:
        yield ok(chosen, f"TCP goes by it, {_shown(speeds[chosen])}")


def _speed(machine: Machine, name: str) -> int | None:
    """Return megabits per second."""
    speed = machine.sysfs.count(f"{NET}/{name}/speed")
    return speed or None


def _shown(speed: int | None) -> str:
    return "speed unknown" if speed is None else f"{speed / 1e3:g} Gb/s"
