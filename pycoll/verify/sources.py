"""Sources: the text between an algorithm and its Programs, by which certificates are tied to it.

Of the built-ins' files an algorithm depends on the one that defines it, and on those that this one
imports. So an edit of a file voids the certificates of its importers, and a new file voids none.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from pycoll.schedule import Algorithm

PACKAGE = Path(__file__).parents[1]
PIPELINE = (
    "schedule/*.py",
    "passes/*.py",
    "program/image.py",
    "program/isa.py",
    "program/lower.py",
    "program/program.py",
    "verify/symmetry/*.py",
)

_BUILTINS = "pycoll.algorithms"
_IMPORT = (ast.Import, ast.ImportFrom)


@cache
def source_digest(patterns: tuple[str, ...] = PIPELINE) -> str:
    """Return a digest of the package's files that match, or "" where there is no source."""
    state = hashlib.sha256()
    for pattern in patterns:
        paths = sorted(PACKAGE.glob(pattern))
        if not paths:
            return ""
        for path in paths:
            state.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return state.hexdigest()


def defining(algorithm: Algorithm) -> str:
    """Return the file of the built-ins that defines an algorithm; "" where it is in none."""
    module = algorithm.function.__module__
    # One that a function of the package has made, such as `hierarchical`, stands elsewhere.
    if getattr(sys.modules.get(module), algorithm.name, None) is not algorithm:
        return ""
    package, _, name = module.rpartition(".")
    return _file(name) if package == _BUILTINS else ""


def files_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the files of the built-ins that an algorithm depends on, in order of their names.

    All of them, if it is not known which defines it. What imports the package itself, and not a
    file of it, depends on all that the package imports.
    """
    every = {_file(path.stem) for path in PACKAGE.glob(_file("*"))}
    first = defining(algorithm)
    found, left = set[str](), {first} if first else every
    while left:
        found |= left
        left = {imported for file in left for imported in _imports(file, every)} - found
    return tuple(sorted(found))


def _imports(file: str, every: set[str]) -> Iterator[str]:
    """Yield the files of the built-ins that one of them imports, wherever in it."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_bytes())):
        names = [alias.name for alias in node.names] if isinstance(node, _IMPORT) else []
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), _BUILTINS)
            names = [f"{base}.{name}" for name in names]
        for name in names:
            if f"{_BUILTINS}.".startswith(f"{name}."):  # the package, or pycoll itself
                yield _file("__init__")
            elif name.startswith(f"{_BUILTINS}."):
                one = _file(name.removeprefix(f"{_BUILTINS}.").partition(".")[0])
                yield one if one in every else _file("__init__")


def _file(name: str) -> str:
    return f"algorithms/{name}.py"
