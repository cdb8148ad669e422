"""Debian's pyverbs, which also works from another Python of the same version."""

from __future__ import annotations

import sys
from pathlib import Path

#: Beside packages that serve no other Python: a link to it belongs on the path, not its folder.
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")


def lack() -> str:
    """Say why this Python has no pyverbs; empty if it has one."""
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    if any(tag in file.name for file in PYVERBS.glob("device.*.so")):
        return ""
    return "no pyverbs for this Python: apt-get install python3-pyverbs"
