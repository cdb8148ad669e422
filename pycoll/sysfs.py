"""Reading /sys: every file may be missing, unreadable or nonsense, and is then None."""

from __future__ import annotations

import re
from pathlib import Path


class Sysfs:
    """The tree of kernel objects below a root."""

    def __init__(self, root: str | Path = "/") -> None:
        """Look below ``root``, which stands for ``/``."""
        self.root = Path(root)

    def text(self, path: str | Path) -> str | None:
        """Return a file's stripped text."""
        try:
            # A driver may answer with bytes that are no text.
            return (self.root / path).read_bytes().decode("utf-8", "replace").strip() or None
        except (OSError, ValueError):
            return None

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
        return sorted(found, key=_natural)

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


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort eth2 before eth10."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
    ]
