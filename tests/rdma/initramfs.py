"""What the kernel starts from: busybox, the modules that reach the host's files, and boot.sh."""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from kernel import Kernel, cache, program

#: All others are loaded from the host's files, once these are there.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
FOLDERS = ("bin", "dev", "modules", "proc", "sys")


def ready(kernel: Kernel) -> Path:
    """Return the archive for a kernel, after making it if it is not in the cache yet."""
    busybox = Path(program("busybox") or "/bin/busybox").read_bytes()
    boot = Path(__file__).with_name("boot.sh").read_bytes()
    key = hashlib.sha256(repr((kernel.release, MODULES, FOLDERS)).encode() + busybox + boot)
    path = cache() / f"initramfs-{kernel.release}-{key.hexdigest()[:16]}"
    if not path.exists():
        files = {"init": boot, "bin/busybox": busybox, **_modules(kernel)}
        with tempfile.NamedTemporaryFile(dir=cache(), delete=False) as file:
            file.write(_archive(files))
        os.replace(file.name, path)  # whole or not at all, whoever else makes it
    return path


def _modules(kernel: Kernel) -> dict[str, bytes]:
    """Return the modules, and the order in which they load."""
    argv = [
        program("modprobe") or "modprobe",
        "--dirname",
        str(kernel.root),
        "--set-version",
        kernel.release,
    ]
    order: list[Path] = []
    for module in MODULES:
        done = subprocess.run(
            [*argv, "--show-depends", module], capture_output=True, text=True, check=True
        )
        for line in done.stdout.splitlines():
            kind, path = line.split()[:2]
            if kind == "insmod" and Path(path) not in order:  # "builtin" needs nothing
                order.append(Path(path))
    # busybox cannot unpack them.
    files = {
        f"modules/{path.name.removesuffix('.xz')}": (
            lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        )
        for path in order
    }
    return {**files, "modules/order": "".join(f"/{name}\n" for name in files).encode()}


def _archive(files: dict[str, bytes]) -> bytes:
    """Return a cpio archive in the format that the kernel reads ("newc")."""
    entries = [
        *((name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS),
        *((name, stat.S_IFREG | 0o755, data) for name, data in files.items()),
        ("TRAILER!!!", 0, b""),
    ]
    archive = bytearray()
    for number, (name, mode, data) in enumerate(entries):
        title = name.encode() + b"\0"
        # inode, mode, user, group, links, time, length, device of 4 numbers, title's length, sum
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(title), 0)
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + title
        archive += bytes(-len(archive) % 4) + data
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
