"""Registration: users' own arrays that peers open, so that calls need not copy them.

The native half does it, as calls are launched (`native/gpu/registration.c`); here it is found out
whether it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pycoll.errors import UsageError


class Process(Protocol):
    """Where a rank lives."""

    @property
    def host(self) -> str:
        """Its machine."""

    @property
    def namespace(self) -> int:
        """In which process ids are unique there."""

    @property
    def pid(self) -> int:
        """Its process."""


def lack(
    settings: Sequence[str], whole: bool, ranks: Sequence[Process], job: Sequence[Process]
) -> str:
    """Return why users' arrays are not registered, the same on all ranks; "" if they are.

    Args:
        settings: Of each rank, PYCOLL_CUDA_REGISTER.
        whole: All ranks reach each other's GPU memory.
        ranks: The processes of the communicator's ranks.
        job: Those of all ranks of the job.

    Raises:
        UsageError: The ranks were given different settings.
    """
    for rank, setting in enumerate(settings):
        if setting != settings[0]:
            raise UsageError(
                f"PYCOLL_CUDA_REGISTER is {setting} on rank {rank} and {settings[0]} on rank 0; "
                "give all ranks the same"
            )
    if settings[0] == "off":
        return "off, by PYCOLL_CUDA_REGISTER"
    if not whole:
        return "not all ranks reach each other's GPU memory"
    # Where all ranks are of one process nothing is opened. Else the driver may have who opens wait
    # for kernels of the process, and those of another rank may wait for the one that opens.
    if _processes(ranks) > 1 and _processes(job) < len(job):
        return "some ranks share a process and some do not"
    return ""


def _processes(ranks: Sequence[Process]) -> int:
    return len({(each.host, each.namespace, each.pid) for each in ranks})
