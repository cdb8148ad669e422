"""Addresses of RoCE ports: without the right one no packet leaves the subnet, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, problem, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import Port

V2 = "RoCE v2"


def gids(machine: Machine) -> Iterator[Finding]:
    """Say whether each RoCE port has an address by which all hosts can reach it."""
    for port in machine.rails:
        if port.ethernet:
            yield _of(port)


def _of(port: Port) -> Finding:
    interface = port.interface or "INTERFACE"
    add = f"ip addr add 192.168.100.1/24 dev {interface} (another on each host)"
    kinds = {gid.kind for gid in port.gids}
    if not port.gids:
        return problem(
            port.name,
            "has no GID, so nothing can be sent to it",
            got="no GID",
            wanted=f"a {V2} GID",
            cure=f"ip link set dev {interface} up && {add}",
        )
    if kinds == {None}:
        return unknown(
            port.name,
            "the types of its GIDs cannot be read",
            cure=f"ibv_devinfo -v -d {port.device} | grep GID",
        )
    if V2 not in kinds:
        return problem(
            port.name,
            "has only RoCE v1, which no router forwards and hosts with v2 cannot answer",
            got=", ".join(sorted(kind for kind in kinds if kind)),
            wanted=V2,
            cure=f"update the card's firmware and driver; {add}; mlx4 cards: options mlx4_core "
            "roce_mode=2 in /etc/modprobe.d/mlx4.conf",
        )
    good = [gid for gid in port.gids if gid.kind == V2 and gid.routable]
    if not good:
        return warning(
            port.name,
            f"{interface} has no IPv4 address, so that only hosts on the same link can be reached",
            got=", ".join(str(gid.address) for gid in port.gids if gid.kind == V2),
            wanted=f"a {V2} GID of an IPv4 address (::ffff:...)",
            cure=add,
        )
    best = next((gid for gid in good if gid.address.ipv4_mapped), good[0])
    return ok(port.name, f"{V2} at {best.address.ipv4_mapped or best.address}, GID {best.index}")
