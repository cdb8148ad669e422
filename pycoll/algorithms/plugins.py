"""Algorithms of other packages: entry points of the group ``pycoll.algorithms``.

An entry point names an Algorithm (a function under ``@pycoll.algorithm``); its name is the
entry point's. All are loaded when the first choice is made, for they take part in it, and when an
algorithm of an unknown name is asked for.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES, Algorithm

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pycoll.algorithms"

Name = tuple[str, str]  #: of a collective and of an algorithm for it


@cache
def load(builtin: tuple[Name, ...]) -> dict[Name, Algorithm]:
    """Return every plug-in by collective and name.

    Args:
        builtin: Names that are pycoll's own.

    Raises:
        UsageError: One does not load, is no Algorithm, or has a name that is taken.
    """
    taken = dict.fromkeys(builtin, "pycoll")
    found: dict[Name, Algorithm] = {}
    for point in _points():
        algorithm = _load(point)
        key = algorithm.collective.name, point.name
        if key in taken:
            raise UsageError(
                f"{_of(point)}: {key[0]} has an algorithm {key[1]!r} by {taken[key]}; want "
                "another name"
            )
        taken[key] = _distribution(point)
        found[key] = algorithm
    return found


def _points() -> list[EntryPoint]:
    if not _declared():
        return []
    from importlib.metadata import entry_points  # slow to load, and rarely needed

    # Of equals the first runs, and folders are listed in another order on another host.
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def _declared() -> bool:
    """Tell whether anything installed may have plug-ins; where it is not a folder, it may."""
    if any(hasattr(f, "find_distributions") and f is not PathFinder for f in sys.meta_path):
        return True
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            if name.lower().endswith(("dist-info", "egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        if GROUP.encode() in file.read():
                            return True
                except OSError:
                    continue
    return False


def _load(point: EntryPoint) -> Algorithm:
    try:
        found = point.load()
    except Exception as error:
        raise UsageError(f"{_of(point)} does not load: {type(error).__name__}: {error}") from error
    if not isinstance(found, Algorithm):
        raise UsageError(
            f"{_of(point)} is a {type(found).__name__}, want a function under @pycoll.algorithm"
        )
    if COLLECTIVES.get(found.collective.name) is not found.collective:
        raise UsageError(
            f"{_of(point)} is for a collective {found.collective.name!r} of its own, want one of "
            f"{', '.join(COLLECTIVES)}"
        )
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


def _of(point: EntryPoint) -> str:
    return f"plug-in {point.name} = {point.value} of {_distribution(point)}"
