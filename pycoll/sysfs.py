"""Reading /sys and /proc: every file may be missing, unreadable or nonsense, and is then None."""

from __future__ import annotations

import re
from pathlib import Path

NET, RDMA = "sys/class/net", "sys/class/infiniband"
CPUS, NUMA = "sys/devices/system/cpu", "sys/devices/system/node"
PCI = "sys/bus/pci/devices"


class Sysfs:
    """The tree of kernel objects below a root."""

    def __init__(self, root: str | Path = "/") -> None:
        """Look below ``root``, which stands for ``/``."""
        self.root = Path(root)

    def text(self, path: str | Path, most: int = -1) -> str | None:
        """Return a file's stripped text, or that of its first bytes."""
        try:
            with open(self.root / path, "rb") as file:
                # A driver may answer with bytes that are no text.
                return file.read(most).decode("utf-8", "replace").strip() or None
        except (OSError, ValueError):
            return None

    def field(self, path: str | Path, name: str) -> str | None:
        """Return what stands behind a name in a file of such lines as ``MemFree:  8 kB``."""
        # The whole of /proc/cpuinfo takes long on a large machine, and its first core says it all.
        text = self.text(path, 4096) or ""
        match = re.search(
            rf"^(?:Node \d+ )?{re.escape(name)}[^\S\n]*:[^\S\n]*(\S.*)", text, re.MULTILINE
        )
        return match[1].strip() if match else None

    def nbytes(self, path: str | Path, name: str) -> int | None:
        """Return the bytes that stand behind a name, in kB as the kernel has them."""
        match = re.match(r"[0-9]{1,15}(?= kB)", self.field(path, name) or "")
        return int(match[0]) << 10 if match else None

    def number(self, path: str | Path) -> float | None:
        """Return the number that a file begins with, such as 16.0 of ``16.0 GT/s PCIe``."""
        match = re.match(r"-?\d{1,15}(\.\d{1,15})?(?!\d)", self.text(path) or "")
        return float(match[0]) if match else None

    def count(self, path: str | Path) -> int | None:
        """Return the number that a file begins with, if it is whole and not negative."""
        number = self.number(path)
        return int(number) if number is not None and number >= 0 and number == int(number) else None

    def names(self, path: str | Path) -> list[str]:
        """Return what a folder holds, in order; nothing where there is none."""
        try:
            found = [entry.name for entry in (self.root / path).iterdir()]
        except (OSError, ValueError):
            return []
        return sorted(found, key=natural)

    def target(self, path: str | Path) -> tuple[str, ...]:
        """Return the parts of the path that a link leads to; nothing where it leads nowhere."""
        try:
            return (self.root / path).resolve(strict=True).parts
        except (OSError, RuntimeError, ValueError):
            return ()

    def ids(self, path: str | Path) -> frozenset[int] | None:
        """Return the numbers of a list such as ``0-3,8``."""
        text = self.text(path)
        if text is None or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
            return None
        found: set[int] = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), min(int(last or first), int(first) + (1 << 16)) + 1))
        return frozenset(found)


#: The machine that this process runs on.
HOST = Sysfs()


def boot_id() -> str:
    """Return what tells this machine's running kernel from all others; "" where nobody does."""
    return HOST.text("proc/sys/kernel/random/boot_id") or ""


def cpu_model() -> str:
    """Return the model of this machine's processor; "" where the system does not say."""
    return HOST.field("proc/cpuinfo", "model name") or ""


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort eth2 before eth10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
    ]
