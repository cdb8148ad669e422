"""Access Control Services: bridges that send what passes between two cards up to the root first."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, problem, unknown
from pycoll.doctor.machine import Machine
from pycoll.sysfs import PCI

_FIRST = 0x100  #: where the extended capabilities begin
_ACS = 0x000D
#: Of the control register: requests, completions and upstream traffic are redirected, egress is
#: controlled. Source validation and translation blocking alone let peers pass.
_REDIRECTS = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x10: "UpstreamFwd", 0x20: "EgressCtrl"}


def acs(machine: Machine) -> Iterator[Finding]:
    """Find such bridges on the way between each GPU and the RDMA cards below the same bridge."""
    found: dict[str, None] = {}
    for gpu in machine.gpus:
        for card in machine.cards:
            found.update(dict.fromkeys(bridges(machine, gpu.name, card)))
    fine = []
    for bridge in found:
        said = control(machine, bridge)
        if said is None:
            yield unknown(
                bridge,
                "only root may read whether it redirects what GPU and RDMA card send each other",
                cure=f"sudo lspci -vvv -s {bridge} | grep ACSCtl",
            )
        elif names := redirects(said):
            yield problem(
                bridge,
                "sends what GPU and RDMA card send each other up to the root and back",
                got=f"ACS control {said:#06x}: {', '.join(names)}",
                wanted="no redirect",
                cure=f"setpci -s {bridge} ECAP_ACS+0x6.w=0000, after each boot; or ACS off in the "
                "BIOS",
            )
        else:
            fine.append(bridge)
    if fine:
        yield ok(", ".join(fine), "no redirect")


def redirects(control: int) -> list[str]:
    """Return what a bridge with this control register redirects."""
    return [name for bit, name in _REDIRECTS.items() if control & bit]


def bridges(machine: Machine, a: str, b: str) -> list[str]:
    """Return the bridges below the one that two functions share; none when they share none."""
    left, right = machine.above(a), machine.above(b)
    shared = set(left) & set(right)
    return [bridge for bridge in (*left, *right) if bridge not in shared] if shared else []


def control(machine: Machine, bridge: str) -> int | None:
    """Return the ACS control register, 0 of a bridge without, None if it may not be read."""
    try:
        config = (machine.root / PCI / bridge / "config").read_bytes()
    except OSError:
        return None
    if len(config) <= 64:
        return None  # all that the kernel shows to who is not root
    at, seen = _FIRST, set[int]()
    while _FIRST <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return 0
