"""Control groups: how many RDMA objects this job may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from pycoll.doctor.finding import Finding, bad, ok
from pycoll.doctor.machine import Machine

ROOT = "sys/fs/cgroup"
#: Each peer takes a queue pair and two memory regions of each rail; a rail some more.
_PER_PEER, _PER_RAIL = 3, 8


def cgroup(machine: Machine) -> Iterator[Finding]:
    """Find limits of RDMA objects and of opened devices."""
    limited = False
    for file in _files(machine):
        for line in (machine.sysfs.text(file) or "").splitlines():
            device, *words = line.split()
            limits = dict(re.findall(r"(hca_handle|hca_object)=(\d{1,9})(?!\d)", " ".join(words)))
            for name, text in limits.items():
                limited = True
                yield _of(file, device, name, int(text))
    if not limited:
        yield ok("this process", "no control group limits RDMA objects")


def _of(file: str, device: str, name: str, most: int) -> Finding:
    peers = max(0, (most - _PER_RAIL) // _PER_PEER) if name == "hca_object" else most
    if peers >= 1024:
        return ok(f"/{file}", f"{name} {most} of {device}: enough for {peers} remote ranks")
    what = (
        f"a process on {device} has room for {peers} remote ranks"
        if name == "hca_object"
        else f"so many processes of this job can open {device}"
    )
    return bad(
        peers == 0,
        f"/{file}",
        what,
        got=f"{name}={most}",
        wanted="max",
        cure=f"echo '{device} {name}=max' > /{file}",
    )


def _files(machine: Machine) -> Iterator[str]:
    """Yield the files of this process's group and of all above it."""
    for line in (machine.sysfs.text("proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "rdma"):
            continue
        top = f"{ROOT}/rdma" if controllers else ROOT
        group = PurePosixPath("/") / path
        for at in (group, *group.parents):
            yield str(PurePosixPath(top + str(at)) / "rdma.max")
