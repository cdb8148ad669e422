"""Runs in the guest: the fork server of its ranks, which have a host of their own besides."""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import fork_server

#: What no rank of a test needs.
COLD = ("pycoll.__main__", "pycoll.benchmark", "pycoll.cli", "pycoll.doctor", "pycoll.interop")
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def load() -> None:
    """Import all that a rank may."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # they would not survive the fork
    import pycoll

    for module in pkgutil.walk_packages(pycoll.__path__, "pycoll."):
        if not module.name.startswith(COLD):
            importlib.import_module(module.name)
    importlib.import_module("numpy.testing")


def move(host: int, apart: bool) -> None:
    """Go to a host, as the script `on` does."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(code: int, what: str) -> None:
        if code:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, target: str, kind: str, flags: int) -> None:
        arguments = (source.encode(), target.encode(), kind.encode(), flags, None)
        check(libc.mount(*arguments), f"mount {target}")

    for path in (f"/run/hosts/{host}", f"/run/netns/host{host}"):
        with open(path) as namespace:
            check(libc.setns(namespace.fileno(), 0), f"setns {path}")
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "none", MS_REC | MS_SLAVE)
    mount("sysfs", "/sys", "sysfs", 0)
    if apart:
        mount(f"/run/hosts/{host}.boot", BOOT_ID, "none", MS_BIND)


def become(what: dict[str, Any]) -> None:
    """Be a rank: run its script as the main program."""
    os.setsid()
    with open(f"{what['group']}/cgroup.procs", "w") as file:
        file.write("0")
    if what["host"] is not None:
        move(what["host"], what["apart"])
    fork_server.run(what)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load()
    if request := fork_server.serve(socket.socket(fileno=int(sys.argv[1]))):
        become(request)
