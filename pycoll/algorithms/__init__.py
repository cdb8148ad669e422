"""The algorithms that pycoll ships; each has no privilege over a user's own."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.recursive import halving_doubling, recursive_doubling
from pycoll.algorithms.ring import ring
from pycoll.algorithms.shots import one_shot, two_shot
from pycoll.algorithms.tree import double_binary_tree
from pycoll.errors import UsageError
from pycoll.schedule import Algorithm

BUILTIN: tuple[Algorithm, ...] = (
    ring,
    recursive_doubling,
    halving_doubling,
    double_binary_tree,
    one_shot,
    two_shot,
)


def names(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms for ``collective``."""
    return tuple(a.name for a in BUILTIN if a.collective.name == collective)


def get(name: str, collective: str = "allreduce") -> Algorithm:
    """Return the algorithm called ``name``; UsageError lists those that exist."""
    for candidate in BUILTIN:
        if candidate.name == name and candidate.collective.name == collective:
            return candidate
    raise UsageError(f"algorithm is {name!r}, want one of {', '.join(names(collective))}")


__all__ = ["BUILTIN", "Algorithm", "algorithm", "get", "names"]
