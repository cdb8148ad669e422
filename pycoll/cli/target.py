"""How the command line names an algorithm: ``ring``, or ``file.py:function`` for one's own."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from pycoll.algorithms import Algorithm, get, names
from pycoll.errors import UsageError


def load(target: str) -> Algorithm:
    """Return the algorithm that ``target`` names.

    Args:
        target: The name of a built-in, or ``path/to/file.py:function``.

    Raises:
        UsageError: No such built-in, file or function, or the file does not load.
    """
    path, colon, function = target.rpartition(":")
    if colon:
        return _from_file(Path(path), function)
    known = names("allreduce")
    if target not in known:
        raise UsageError(
            f"algorithm is {target!r}, want one of {', '.join(known)} or file.py:function"
        )
    return get(target)


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
        "want a function under @pycoll.algorithm(pycoll.allreduce)"
    )


def size(text: str) -> int:
    """Parse a number of ranks or of slots."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, want an integer of at least 1")
    return int(text)
