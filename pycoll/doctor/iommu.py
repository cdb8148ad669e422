"""Translation of what cards read and write: it costs bandwidth, and peer-to-peer may not work."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.sysfs import PCI

_OFF = {"iommu=off", "intel_iommu=off", "amd_iommu=off"}
_ON = {"intel_iommu=on", "amd_iommu=on", "iommu=force", "iommu.passthrough=0"}
_THROUGH = {"iommu=pt", "iommu.passthrough=1"}
_CURE = (
    "iommu=pt in GRUB_CMDLINE_LINUX of /etc/default/grub, update-grub (grub2-mkconfig -o "
    "/boot/grub2/grub.cfg), reboot"
)


def iommu(machine: Machine) -> Iterator[Finding]:
    """Say for each RDMA card and GPU whether an IOMMU translates its addresses."""
    for address in dict.fromkeys([*machine.cards, *(gpu.name for gpu in machine.gpus)]):
        yield of(machine, address)


def of(machine: Machine, address: str) -> Finding:
    """Say it for one of them."""
    folder = f"{PCI}/{address}/iommu_group"
    if not (machine.root / folder).is_dir():
        return ok(address, "behind no IOMMU")
    kind = machine.sysfs.text(f"{folder}/type")
    words = set(machine.words())
    if kind == "identity" or (kind is None and words & (_THROUGH | _OFF)):
        return ok(address, "the IOMMU passes its addresses through")
    if kind is None and not words & _ON:
        return unknown(
            address,
            "is behind an IOMMU, and nothing says whether that translates",
            cure="dmesg | grep -i -e iommu -e DMAR",
        )
    return warning(
        address,
        "an IOMMU translates each of its accesses",
        got=f"group type {kind}" if kind else " ".join(sorted(words & _ON)),
        wanted="identity (pass-through)",
        cure=_CURE,
    )
