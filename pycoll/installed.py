"""Installed: where this Python has pycoll, and where it imports pycoll from.

Python puts the working directory in front of all else for ``-m`` and ``-c``, so whoever stands in
the source folder imports the sources, which have no engine unless it was built there.
"""

from __future__ import annotations

from pathlib import Path

#: The package as it was imported.
HERE = Path(__file__).parent


def engine_elsewhere() -> Path | None:
    """Return the folder of an installed pycoll that has an engine and is not the imported one."""
    from importlib import metadata  # slow to load, and rarely needed

    for found in metadata.distributions(name="pycoll"):
        there = Path(str(found.locate_file("pycoll")))
        if any(there.glob("_native*.so")) and not there.samefile(HERE):
            return there
    return None


def in_sources() -> bool:
    """Tell whether the imported package lies in the folder that it is built from."""
    return (HERE.parent / "native" / "build.py").exists()
