"""Cards that only libfabric drives (EFA, Slingshot): whether it is there, with a provider."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, unknown, warning
from pycoll.doctor.machine import Machine
from pycoll.doctor.port import devices

CXI = "sys/class/cxi"
_INSTALL = "the EFA installer of AWS, or apt-get install libfabric1 (dnf install libfabric)"


def provider(machine: Machine) -> Iterator[Finding]:
    """Say whether pycoll can use the devices that speak neither InfiniBand nor RoCE."""
    others = [*devices(machine.sysfs)[1], *machine.sysfs.names(CXI)]
    if not others or machine.ports:
        return
    if machine.provider is None:
        yield unknown(
            "libfabric", "pycoll's engine is not there to ask it", cure="fi_info -t FI_EP_RDM"
        )
    elif machine.provider.startswith("missing: "):
        got, _, cure = machine.provider.removeprefix("missing: ").rpartition(": ")
        yield warning(
            ", ".join(others),
            "without libfabric other hosts are reached over TCP",
            got=got or machine.provider,
            wanted="a provider of libfabric for this hardware",
            cure=cure if got else _INSTALL,
        )
    else:
        yield ok("libfabric", f"other hosts are reached by {machine.provider}")
