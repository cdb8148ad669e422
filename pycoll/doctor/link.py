"""State of the ports: no cable, no subnet manager, a lane lost."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, bad, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import ACTIVE, Port

_INIT, _ARMED = 2, 3
_DISABLED = 3  #: of the physical states

_MANAGER = "apt-get install opensm && systemctl enable --now opensm, on one host of the subnet"


def state(machine: Machine) -> Iterator[Finding]:
    """Say which ports carry no data, and why."""
    dead = not machine.rails
    for port in machine.ports:
        if port.state is None:
            yield unknown(port.name, "its state cannot be read", cure="ibv_devinfo")
        elif port.active:
            speed = f"{port.speed / 1e9:g} Gb/s" if port.speed else "speed unknown"
            yield ok(port.name, f"active, {port.layer or 'link layer unknown'}, {speed}")
        else:
            why, cure = _why(port)
            # A card's second port is often left without a cable on purpose.
            yield bad(
                dead,
                port.name,
                f"carries no data: {why}",
                got=port.states,
                wanted=f"{ACTIVE}: ACTIVE",
                cure=cure,
            )


def lanes(machine: Machine) -> Iterator[Finding]:
    """Find InfiniBand links that came up with one lane: a bad cable costs three quarters."""
    rails = [port for port in machine.rails if port.layer == "InfiniBand" and not port.software]
    for port in rails:
        if port.width == 1:
            yield warning(
                port.name,
                "its link came up with a single lane",
                got=machine.sysfs.text(f"{port.folder}/rate") or "",
                wanted="4X (2X of a split cable)",
                cure="seat or replace the cable, then ibportstate -D 0 "
                f"{port.number} reset; iblinkinfo shows both ends",
            )
        else:
            yield ok(port.name, f"{port.width or 'unknown'} lanes")


def _why(port: Port) -> tuple[str, str]:
    interface = port.interface or "INTERFACE"
    if port.state in (_INIT, _ARMED) and not port.ethernet:
        return "no subnet manager has set it up", _MANAGER
    if port.ethernet and (port.physical == _DISABLED or port.software):
        return f"its interface {interface} is down", f"ip link set dev {interface} up"
    if port.physical == _DISABLED:
        return "it was disabled", f"ibportstate -D 0 {port.number} enable"
    show = f"ethtool -m {interface}" if port.ethernet else "iblinkinfo -D 0"
    return (
        "it hears nothing from the other end",
        f"plug in or replace the cable, and enable the switch's port; {show} shows what it sees",
    )
