"""GPUs for a test: the stand-in for libcuda, loaded into the test's own process.

The engine finds libcuda by its name when it first wants it, and so finds what is loaded already. A
test that is marked ``fake_cuda`` runs in a child of its own (child.py) that has loaded the
stand-in; the marker's arguments are its options, as fakecuda_library.py has them. Processes that
the test starts have it by ``LD_LIBRARY_PATH``.
"""

from __future__ import annotations

from pathlib import Path

import fakecuda
import pytest


def library() -> Path:
    """Build the stand-in, once."""
    return fakecuda.library()


def loaded() -> str:
    """The libcuda that this process has loaded; empty if it has none."""
    maps = Path("/proc/self/maps").read_text()
    return next((line.split()[-1] for line in maps.splitlines() if "/libcuda.so" in line), "")


def prepare(item: pytest.Item, folder: Path) -> None:
    """Give the process of a marked test its GPUs."""
    if other := loaded():
        raise RuntimeError(f"{other} was loaded before: the test that did so wants own_process")
    options: dict[str, object] = {}
    for marker in item.iter_markers("fake_cuda"):
        options |= marker.kwargs
    fakecuda.load(folder / "cuda.log", **options)
