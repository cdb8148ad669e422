"""A made-up machine's /sys, built from a text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = Path(__file__).parents[1] / "data" / "sysfs"


def build(root: Path, text: str) -> Path:
    """Make the files and links that ``text`` lists; return the root."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        path, sign, rest = line.partition(" = ")
        if sign:
            file = root / "sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(rest + "\n")
        else:
            path, _, rest = line.partition(" -> ")
            link = root / "sys" / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / "sys" / rest)
    return root


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    """Add files and links to a machine of a test's own; returns its root."""
    return functools.partial(build, tmp_path)


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """The root of the machine in tests/data/sysfs/two_sockets.txt."""
    return build(tmp_path, (MACHINES / "two_sockets.txt").read_text())
