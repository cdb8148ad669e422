"""Every check, in the order of the table: the process, the driver, the ports, the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from pycoll.doctor import (
    acs,
    alike,
    cgroup,
    congestion,
    counters,
    gids,
    gpu,
    gpudirect,
    iommu,
    kernel,
    library,
    limits,
    link,
    mtu,
    provider,
    slot,
    tcp,
)
from pycoll.doctor.finding import Finding
from pycoll.doctor.machine import Machine


class Check(NamedTuple):
    """One question about a machine."""

    name: str
    run: Callable[[Machine], Iterable[Finding]]


CHECKS = (
    Check("engine", library.engine),
    Check("kernel", kernel.kernel),
    Check("memlock", limits.memlock),
    Check("space", limits.space),
    Check("files", limits.files),
    Check("cgroup", cgroup.cgroup),
    Check("driver", library.driver),
    Check("library", library.library),
    Check("libfabric", provider.provider),
    Check("access", library.access),
    Check("state", link.state),
    Check("lanes", link.lanes),
    Check("gids", gids.gids),
    Check("mtu", mtu.mtu),
    Check("alike", alike.alike),
    Check("pfc", congestion.pfc),
    Check("ecn", congestion.ecn),
    Check("mark", congestion.mark),
    Check("counters", counters.counters),
    Check("slot", slot.slot),
    Check("iommu", iommu.iommu),
    Check("acs", acs.acs),
    Check("memory", gpu.memory),
    Check("gpudirect", gpudirect.gpudirect),
    Check("bar1", gpudirect.bar1),
    Check("distance", gpu.distance),
    Check("tcp", tcp.tcp),
)


def examine(machine: Machine, checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    """Yield what each check finds, with its name."""
    for check in checks:
        for finding in check.run(machine):
            yield replace(finding, check=check.name)
