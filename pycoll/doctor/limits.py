"""Limits of the process: memory that may be pinned, address space, open files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pycoll.doctor.finding import Finding, bad, ok, unknown, warning
from pycoll.doctor.machine import Machine

WHERE = "this process"

#: Less than what a few peers take: opening RDMA fails at once.
_LITTLE = 64 << 20
_CAP_IPC_LOCK = 14
_DOCKER = "docker run --ulimit memlock=-1 (Kubernetes: LimitMEMLOCK=infinity of the runtime)"
_SLURM = (
    "systemctl edit slurmd: [Service] LimitMEMLOCK=infinity; and in slurm.conf "
    "PropagateResourceLimitsExcept=MEMLOCK"
)
_FILES = "echo '* - nofile 65536' > /etc/security/limits.d/90-files.conf, then log in again"
_LOGIN = "echo '* - memlock unlimited' > /etc/security/limits.d/90-rdma.conf, then log in again"


def memlock(machine: Machine) -> Iterator[Finding]:
    """Say whether RDMA may pin as much memory as it needs."""
    if not machine.ports:
        return
    limits = _limit(machine, "Max locked memory")
    if limits is None:
        yield unknown(WHERE, "the limit of pinned memory cannot be read", cure="ulimit -l")
        return
    soft, hard = limits
    if soft == math.inf:
        yield ok(WHERE, "memory may be pinned without limit")
    elif _may_ignore(machine):
        yield ok(WHERE, f"CAP_IPC_LOCK: the limit of {_shown(soft)} does not hold")
    else:
        raised = hard == math.inf
        yield bad(
            soft < _LITTLE,
            WHERE,
            "RDMA pins memory for every peer, which this limit may refuse",
            got=f"{_shown(soft)} (hard limit {_shown(hard)})",
            wanted="unlimited",
            cure="ulimit -l unlimited, where the job is started" if raised else _cure(machine),
        )


def space(machine: Machine) -> Iterator[Finding]:
    """Say whether the address space holds the peers' memory, which is mapped whole but sparse."""
    limits = _limit(machine, "Max address space")
    if limits is None:
        yield unknown(WHERE, "the limit of address space cannot be read", cure="ulimit -v")
    elif limits[0] == math.inf:
        yield ok(WHERE, "address space has no limit")
    else:
        yield warning(
            WHERE,
            "memory of all ranks of a host is mapped, mostly without pages behind it; less "
            "address space is less room for comm.empty()",
            got=_shown(limits[0]),
            wanted="unlimited",
            cure="ulimit -v unlimited",
        )


def files(machine: Machine) -> Iterator[Finding]:
    """Say whether as many files may be open as a large job needs: sockets and memory of peers."""
    limits = _limit(machine, "Max open files")
    if limits is None:
        yield unknown(WHERE, "the limit of open files cannot be read", cure="ulimit -n")
    elif limits[0] >= 1024:
        yield ok(WHERE, f"{limits[0]:g} files may be open")
    else:
        yield bad(
            limits[0] < 64,
            WHERE,
            "each remote rank takes a socket, on rank 0 one more",
            got=f"{limits[0]:g} (hard limit {limits[1]:g})",
            wanted="at least 1024",
            cure="ulimit -n 1024" if limits[1] >= 1024 else _FILES,
        )


def _limit(machine: Machine, name: str) -> tuple[float, float] | None:
    """Return a soft and a hard limit."""
    text = machine.sysfs.text("proc/self/limits") or ""
    found = re.search(rf"^{name}\s+(\d{{1,20}}|unlimited)\s+(\d{{1,20}}|unlimited)", text, re.M)
    if found is None:
        return None
    soft, hard = (math.inf if word == "unlimited" else float(word) for word in found.groups())
    return soft, hard


def _may_ignore(machine: Machine) -> bool:
    """Tell whether the process has CAP_IPC_LOCK for the whole machine, not for a container."""
    found = re.search(
        r"^CapEff:\s+([0-9a-f]{1,16})", machine.sysfs.text("proc/self/status") or "", re.M
    )
    users = (machine.sysfs.text("proc/self/uid_map") or "").split()
    return (
        found is not None
        and bool(int(found[1], 16) >> _CAP_IPC_LOCK & 1)
        and users == ["0", "0", "4294967295"]
    )


def _cure(machine: Machine) -> str:
    """Return where the limit of such a process is set: whoever started it decides."""
    group = machine.sysfs.text("proc/self/cgroup") or ""
    if "slurm" in group:
        return _SLURM
    if re.search(r"docker|kubepods|libpod|containerd", group):
        return _DOCKER
    service = re.search(r"/system\.slice/([\w@.-]+\.service)", group)
    if service and service[1] not in ("ssh.service", "sshd.service"):
        return f"systemctl edit {service[1]}: [Service] LimitMEMLOCK=infinity; then restart it"
    return _LOGIN


def _shown(nbytes: float) -> str:
    if nbytes == math.inf:
        return "unlimited"
    return f"{nbytes / (1 << 30):g} GiB" if nbytes >= 1 << 30 else f"{nbytes / 1024:g} KiB"
