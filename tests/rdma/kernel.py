"""Debian's own kernel, downloaded once and unpacked into the cache; nothing is installed."""

from __future__ import annotations

import contextlib
import fcntl
import lzma
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

META = "linux-image-amd64"  #: the package that depends on the newest kernel's
#: No other user, who could not write here, and no long wait where there is no network.
OPTIONS = (
    *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1"),
    *("-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"),
)
#: What of a kernel's modules a guest can use: the rest is three quarters of 400 MB.
MODULES = re.compile(
    r"modules\.|kernel/(?!drivers/|sound/)"
    r"|kernel/drivers/(block|char|dma-buf|infiniband|net/[^/]+\.ko|net/bonding|virtio)"
)


class KernelError(Exception):
    """There is no kernel in the cache, and none can be had."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    root: Path

    @property
    def modules(self) -> Path:
        """The folder that is /lib/modules in the guest."""
        return self.root / "lib" / "modules"

    @property
    def release(self) -> str:
        """What `uname -r` says in the guest."""
        return next(self.modules.iterdir()).name

    @property
    def image(self) -> Path:
        """What the machine boots."""
        plain = self.root / "boot" / f"vmlinux-{self.release}"
        return plain if plain.exists() else plain.with_name(f"vmlinuz-{self.release}")


def cache() -> Path:
    """Return the folder where kernels and their initramfs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pycoll", "guest")


def program(name: str) -> str | None:
    """Return the path of a command; those of root are not on everybody's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


def ready() -> Kernel:
    """Return the kernel in the cache, after downloading it if there is none (once, 70 MB).

    Raises:
        KernelError: There is none, and why apt gives none.
    """
    if (found := _find()) is not None:
        return found
    if platform.machine() != "x86_64":
        raise KernelError(f"the guest is an x86-64 machine, this one is {platform.machine()}")
    try:
        cache().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelError(f"{cache()} cannot be made: {error.strerror}") from None
    if not os.access(cache(), os.W_OK):
        raise KernelError(f"{cache()} cannot be written; XDG_CACHE_HOME names another")
    with _alone():
        return _find() or _fetch()


def _find() -> Kernel | None:
    """Return the newest kernel in the cache."""
    # Only a rename makes a folder of this name, so what is there is whole.
    found = sorted(cache().glob("kernel-*"), key=lambda path: path.stat().st_mtime)
    return Kernel(found[-1]) if found else None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep every other process from downloading meanwhile; the lock ends with its holder."""
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache().glob("fetching-*"):
            shutil.rmtree(left)  # by one that was killed
        yield


def _fetch() -> Kernel:
    """Download and unpack the newest kernel, as apt's lists have it."""
    depends = _said("apt-cache", "depends", META)
    named = re.search(r"Depends: (linux-image-\S+)", depends)
    if named is None:
        raise KernelError(f"apt's {META} depends on no kernel, want Debian's")
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache()) as name:
        work, root = Path(name), Path(name, "root")
        _said("apt-get", *OPTIONS, "download", named[1], cwd=work)
        _unpack(next(work.glob("*.deb")), root)
        kernel = Kernel(root)
        _said("depmod", "--basedir", str(root), kernel.release)
        _unzip(kernel)
        return Kernel(root.rename(cache() / f"kernel-{kernel.release}"))


def _unpack(package: Path, root: Path) -> None:
    """Unpack what a guest can use."""
    root.mkdir()
    argv = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar,
    ):
        for member in tar:
            path = member.name.removeprefix("./").removeprefix("usr/")
            below = re.sub(r"^lib/modules/[^/]+/", "", path)
            wanted = MODULES.match(below) if below != path else path.startswith("boot/vmlinuz-")
            if member.isfile() and wanted and (data := tar.extractfile(member)):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data.read())
    if unpacking.returncode:
        raise KernelError(f"dpkg-deb cannot read {package.name}: it ended {unpacking.returncode}")


def _unzip(kernel: Kernel) -> None:
    """Unpack the image too: QEMU boots either, but its processor would need a second each time."""
    packed = kernel.image.read_bytes()
    start = packed.find(b"\xfd7zXZ\0")
    plain = lzma.LZMADecompressor().decompress(packed[start:]) if start >= 0 else b""
    if plain.startswith(b"\x7fELF"):
        (kernel.root / "boot" / f"vmlinux-{kernel.release}").write_bytes(plain)


def _said(name: str, *arguments: str, cwd: Path | None = None) -> str:
    """Run a command and return what it says."""
    argv = [program(name) or name, *arguments]
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise KernelError(f"no {name}: want a Debian machine with apt") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise KernelError(f"{name} {arguments[-1]} fails ({said}); try apt-get update")
    return done.stdout
