"""The kernel's version."""

from __future__ import annotations

from collections.abc import Iterator

from pycoll.doctor.finding import Finding, ok, problem, unknown, warning
from pycoll.doctor.machine import Machine

#: memfd_create with seals, which ranks of one host share memory by.
_LEAST = (3, 17)
#: userfaultfd as registrations of arrays need it to be kept between calls
#: (native/memory/mem_events.c); 6.10 on Arm, which no file tells.
_GOOD = (5, 18)


def kernel(machine: Machine) -> Iterator[Finding]:
    """Say what this kernel is too old for."""
    version = machine.kernel()
    cure = "a newer kernel of the distribution, such as its backports or HWE one; then reboot"
    if version is None:
        yield unknown("Linux", "its version cannot be read", cure="uname -r")
        return
    got = f"{version[0]}.{version[1]}"
    if version < _LEAST:
        yield problem(
            "Linux",
            "ranks cannot share memory",
            got=got,
            wanted=f"{_LEAST[0]}.{_LEAST[1]} or later",
            cure=cure,
        )
    elif version < _GOOD and machine.ports:
        yield warning(
            "Linux",
            "memory that was registered for RDMA cannot be watched, so it is registered anew for "
            "each call",
            got=got,
            wanted=f"{_GOOD[0]}.{_GOOD[1]} or later",
            cure=cure,
        )
    else:
        yield ok("Linux", got)
