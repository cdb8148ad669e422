"""Limits: how much memory may be pinned, and who sets that; address space; open files."""

from __future__ import annotations

import pytest

LIMITS, STATUS = "proc/self/limits", "proc/self/status"
LOCKED = "Max locked memory         unlimited            unlimited"


def locked(patient, soft: str, hard: str = "65536") -> None:
    patient.edit(LIMITS, LOCKED, f"Max locked memory   {soft}   {hard}")


def test_little_memory_may_be_pinned(healthy):
    locked(healthy, "65536")
    found = healthy.ill("memlock", "problem")
    assert (found.where, found.got) == ("this process", "64 KiB (hard limit 64 KiB)")
    assert found.wanted == "unlimited"


def test_some_memory_may_be_pinned(healthy):
    locked(healthy, str(1 << 30), str(1 << 30))
    assert healthy.ill("memlock", "warning").got == "1 GiB (hard limit 1 GiB)"


@pytest.mark.parametrize(
    ("group", "cure"),
    [
        ("0::/user.slice/user-1000.slice", "/etc/security/limits.d/90-rdma.conf"),
        ("0::/system.slice/ssh.service", "/etc/security/limits.d/90-rdma.conf"),
        ("0::/system.slice/slurmstepd.scope/job_7", "systemctl edit slurmd: [Service] LimitMEM"),
        ("5:devices:/slurm/uid_0/job_7", "PropagateResourceLimitsExcept=MEMLOCK"),
        ("0::/system.slice/docker-0123.scope", "docker run --ulimit memlock=-1"),
        ("0::/kubepods/burstable/pod1", "docker run --ulimit memlock=-1"),
        ("0::/system.slice/jupyter.service", "systemctl edit jupyter.service: [Service] LimitMEM"),
    ],
)
def test_the_limit_is_raised_where_it_is_set(healthy, group, cure):
    locked(healthy, "65536")
    healthy.write(group, "proc/self/cgroup")
    assert cure in healthy.ill("memlock", "problem").cure


def test_a_soft_limit_is_raised_by_the_job_itself(healthy):
    locked(healthy, "65536", "unlimited")
    assert healthy.ill("memlock", "problem").cure.startswith("ulimit -l unlimited")


def test_root_of_the_machine_has_no_limit(healthy):
    locked(healthy, "65536")
    healthy.edit(STATUS, "CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff")
    assert healthy.examine("memlock") == []
    healthy.write("0 1000 1", "proc/self/uid_map")  # root of a container only
    healthy.ill("memlock", "problem")
    healthy.write("0 0 4294967295", "proc/self/uid_map")
    healthy.edit(STATUS, "CapEff:\t000001ffffffffff", "CapEff:\t000001ffffffbfff")
    healthy.ill("memlock", "problem")


def test_a_machine_without_rdma_pins_nothing(healthy):
    locked(healthy, "65536")
    healthy.remove("sys/class/infiniband")
    assert healthy.examine("memlock") == []


@pytest.mark.parametrize(
    ("check", "cure"), [("memlock", "ulimit -l"), ("space", "ulimit -v"), ("files", "ulimit -n")]
)
def test_limits_that_cannot_be_read(healthy, check, cure):
    healthy.remove(LIMITS)
    assert healthy.ill(check, "not known").cure == cure


def test_address_space_is_limited(healthy):
    healthy.edit(LIMITS, "Max address space         unlimited", "Max address space  8589934592")
    found = healthy.ill("space", "warning")
    assert (found.got, found.cure) == ("8 GiB", "ulimit -v unlimited")


@pytest.mark.parametrize(
    ("soft", "hard", "level", "cure"),
    [
        (1023, 4096, "warning", "ulimit -n 1024"),
        (63, 4096, "problem", "ulimit -n 1024"),
        (256, 256, "warning", "/etc/security/limits.d/90-files.conf"),
    ],
)
def test_few_files_may_be_open(healthy, soft, hard, level, cure):
    healthy.edit(LIMITS, "1048576              1048576", f"{soft}  {hard}")
    found = healthy.ill("files", level)
    assert found.got == f"{soft} (hard limit {hard})"
    assert cure in found.cure
