"""How the command line names an algorithm: ``ring``, or ``file.py:function`` for one's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from pycoll.algorithms import Algorithm, get, names
from pycoll.errors import UsageError
from pycoll.schedule import COLLECTIVES, Level, Placement


def load_algorithm(target: str, collective: str | None = None) -> Algorithm:
    """Return the algorithm that ``target`` names.

    Args:
        target: The name of a built-in, ``collective.name`` where several collectives have one of
            that name, or ``path/to/file.py:function``.
        collective: What it must be for; None: anything, all-reduce if that has one of the name.

    Raises:
        UsageError: No such built-in, file or function, the file does not load, or the algorithm
            is for another collective.
    """
    path, colon, function = target.rpartition(":")
    if colon:
        found = _from_file(Path(path), function)
        if collective not in (None, found.collective.name):
            raise UsageError(f"{target} is for {found.collective.name}, want one for {collective}")
        return found
    first, dot, name = target.partition(".")
    if dot and first in COLLECTIVES and collective in (None, first):
        return get(name, first)
    if collective is not None:
        return get(target, collective)
    return get(target, _collective_of(target))


def _collective_of(name: str) -> str:
    """Return the collective whose built-in is meant by a name alone."""
    having = [collective for collective in COLLECTIVES if name in names(collective)]
    if not having:
        known = sorted({known for collective in COLLECTIVES for known in names(collective)})
        raise UsageError(
            f"algorithm is {name!r}, want one of {', '.join(known)} or file.py:function"
        )
    if "allreduce" in having or len(having) == 1:
        return "allreduce" if "allreduce" in having else having[0]
    which = ", ".join(f"{collective}.{name}" for collective in having)
    raise UsageError(f"algorithm is {name!r}, which {len(having)} have: want one of {which}")


def _from_file(path: Path, function: str) -> Algorithm:
    if not path.is_file():
        raise UsageError(f"{path} is not a file, want file.py:function")
    # A name of its own: the file may be called like a module that is loaded already.
    name = f"pycoll_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file, want file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass in the file looks itself up there
    sys.path.append(str(path.resolve().parent))  # where the file's own imports are sought last
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} does not load: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop()
    found = getattr(module, function, None)
    if isinstance(found, Algorithm):
        return found
    if found is None:
        mine = [name for name, value in vars(module).items() if isinstance(value, Algorithm)]
        raise UsageError(f"{path} has no {function!r}, want one of {', '.join(mine) or 'none'}")
    raise UsageError(
        f"{path}:{function} is a {type(found).__name__}, "
        "want a function under @pycoll.algorithm(...)"
    )


def equal_hosts(size: int, nodes: int | None) -> Placement:
    """Return ``size`` ranks on ``nodes`` equal hosts, one host after the other.

    Raises:
        UsageError: The hosts cannot be equal.
    """
    count = nodes or 1
    if count > size or size % count:
        raise UsageError(f"--nodes is {count}, want a divisor of --size {size}")
    return Placement.of(Level("node", tuple(rank * count // size for rank in range(size))))
