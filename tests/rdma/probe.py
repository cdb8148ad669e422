"""What this machine lacks to run a guest with RDMA."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import kernel

#: Debian packages, one a line; `make rdma-packages` installs them.
PACKAGES = Path(__file__).with_name("packages.txt")
#: Commands that a guest needs, here or inside, and the packages that have them.
COMMANDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "depmod": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
#: Commands that some tests need.
EXTRA = {"ibv_devinfo": "ibverbs-utils", "ib_write_lat": "perftest"}
#: Files that a guest needs: the RDMA library, and what drives rxe devices.
FILES = {
    "*/*/libibverbs.so.1": "ibverbs-providers",
    "*/*/libibverbs/librxe-rdmav*.so": "ibverbs-providers",
}


def tools(*commands: str) -> str:
    """Say which package has commands that this machine lacks; empty if it has all."""
    packages = {**COMMANDS, **EXTRA}
    return _wanted([(name, packages[name]) for name in commands if not kernel.program(name)])


@functools.cache
def lack() -> str:
    """Say what this machine lacks to run a guest, and what mends it; empty if nothing.

    The kernel is downloaded if it is not in the cache yet.
    """
    missing = [
        (command, package) for command, package in COMMANDS.items() if not kernel.program(command)
    ]
    missing += [
        (Path(pattern).name, package)
        for pattern, package in FILES.items()
        if not any(Path("/usr").glob(pattern))
    ]
    if missing:
        return _wanted(missing)
    if not _static(Path(kernel.program("busybox") or "")):
        return "busybox wants libraries, want one that does not: apt-get install busybox-static"
    machines = subprocess.run(
        [kernel.program("qemu-system-x86_64") or "", "-device", "help"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "virtio-9p-pci" not in machines.stdout:
        return "qemu-system-x86_64 cannot share files by 9p: apt-get install qemu-system-x86"
    try:
        kernel.ready()
    except kernel.KernelError as error:
        return f"no kernel for the guest: {error}"
    return ""


def _wanted(missing: Sequence[tuple[str, str]]) -> str:
    if not missing:
        return ""
    names = ", ".join(name for name, _ in missing)
    packages = " ".join(dict.fromkeys(package for _, package in missing))
    return f"no {names}: apt-get install --no-install-recommends {packages} (or make rdma-packages)"


def _static(program: Path) -> bool:
    """Whether a program needs no loader."""
    return b"/ld-linux" not in program.read_bytes()


if __name__ == "__main__":
    sys.exit(lack() or 0)  # a text is printed, and a failure
