"""Runs in the guest: a Python that has imported pycoll, from which ranks are forked.

The guest's processor is slow, and imports are most of what a short job does: a rank that starts
from here has run its first line where another still loads numpy. It is a process like any other,
with its own variables, folder, streams and host; it ends as any Python does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from typing import Any

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


def serve(starter: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; returns in each child with what it is to be, in the end with None."""
    children: dict[int, tuple[int, int]] = {}  # descriptor that tells the end: process, command
    poll = select.poll()
    poll.register(starter, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in children:
                poll.unregister(fd)
                os.close(fd)
                pid, number = children.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                starter.send(json.dumps({"number": number, "status": status}).encode())
                continue
            data, streams, _, _ = socket.recv_fds(starter, 1 << 20, 3)
            if not data:
                return None
            what: dict[str, Any] = json.loads(data)
            if (pid := os.fork()) == 0:
                starter.close()
                for other in children:
                    os.close(other)
                for target, stream in enumerate(streams):
                    os.dup2(stream, target)
                    os.close(stream)
                return what
            for stream in streams:
                os.close(stream)
            starter.send(json.dumps({"number": what["number"], "pid": pid}).encode())
            ended = os.pidfd_open(pid)
            children[ended] = pid, what["number"]
            poll.register(ended, select.POLLIN)


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
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["env"])
    sys.argv = what["argv"]
    # This process was started for another rank, perhaps of another test, with another path.
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    rest = [part for part in sys.path[1:] if part not in own]
    sys.path[:] = [os.path.dirname(os.path.abspath(sys.argv[0])), *own, *rest]
    if "PYTHONFAULTHANDLER" in os.environ:
        importlib.import_module("faulthandler").enable()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load()
    if request := serve(socket.socket(fileno=int(sys.argv[1]))):
        become(request)
