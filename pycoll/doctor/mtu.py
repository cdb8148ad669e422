"""Size of packets: small ones waste a fast link, and those that are too large are dropped."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, problem, unknown, warning
from pycoll.doctor.machine import Attributes, Machine
from pycoll.doctor.port import Port
from pycoll.sysfs import NET

#: Bytes of data that a packet may carry.
SIZES = (256, 512, 1024, 2048, 4096)
#: What the kernel takes off an interface's MTU for headers (``iboe_get_mtu``; rxe takes 80).
_HEADERS, _SOFTWARE_HEADERS = 96, 80
_JUMBO = 9000


def mtu(machine: Machine) -> Iterator[Finding]:
    """Compare what each rail sends in one packet with what it could."""
    told = {(a.device, a.port): a for a in machine.attributes or () if a.mtu}
    for port in machine.rails:
        attributes = told.get((port.device, port.number))
        if port.ethernet:
            yield _roce(machine, port, attributes)
        elif attributes is None:
            yield unknown(port.name, "its MTU cannot be read", cure=f"ibv_devinfo -d {port.device}")
        elif attributes.mtu < attributes.max_mtu:
            yield warning(
                port.name,
                "the subnet manager gave it a smaller MTU than it has",
                got=f"{attributes.mtu}",
                wanted=f"{attributes.max_mtu}",
                cure="Default=0x7fff, ipoib, mtu=5 : ALL=full; in /etc/opensm/partitions.conf, "
                "then systemctl restart opensm",
            )
        else:
            yield ok(port.name, f"MTU {attributes.mtu}")


def fitting(interface_mtu: int, software: bool = False) -> int:
    """Return the MTU of RoCE over an interface with such an MTU; 0 if none fits."""
    room = interface_mtu - (_SOFTWARE_HEADERS if software else _HEADERS)
    return max((size for size in SIZES if size <= room), default=0)


def _roce(machine: Machine, port: Port, attributes: Attributes | None) -> Finding:
    interface = port.interface or "INTERFACE"
    whole = machine.sysfs.count(f"{NET}/{interface}/mtu") if port.interface else None
    if whole is None:
        return unknown(
            port.name, "the MTU of its interface cannot be read", cure=f"ip link show {interface}"
        )
    fits = fitting(whole, port.software)
    active = attributes.mtu if attributes else fits
    most = min(SIZES[-1], attributes.max_mtu if attributes else SIZES[-1])
    if active > fits:
        return problem(
            port.name,
            f"sends packets that are larger than {interface} lets through",
            got=f"RoCE MTU {active} over {whole} bytes",
            wanted=f"at most RoCE MTU {fits}",
            cure=f"ip link set dev {interface} mtu {_JUMBO}, on all hosts and switches",
        )
    if active < min(fits, most):
        return warning(
            port.name,
            f"has smaller packets than {interface} lets through",
            got=f"RoCE MTU {active} over {whole} bytes",
            wanted=f"RoCE MTU {min(fits, most)}",
            cure=f"ip link set dev {interface} down && ip link set dev {interface} up",
        )
    if fits < most:
        return warning(
            port.name,
            "no jumbo frames: more headers, and more packets for the card to keep up with",
            got=f"{interface} has MTU {whole}, so RoCE has {fits}",
            wanted=f"MTU {_JUMBO}, so that RoCE has {most}",
            cure=f"ip link set dev {interface} mtu {_JUMBO}, on all hosts and switches",
        )
    return ok(port.name, f"RoCE MTU {active} over {interface} with {whole}")
