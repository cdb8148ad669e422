"""A topology as a JSON document: ``load(save(t)) == t``."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any

from pycoll.arguments import filename, instance
from pycoll.errors import UsageError, quoted
from pycoll.topology.topology import Topology

KEY, VERSION = "pycoll_topology", 1  #: what tells the document, and what it means


def dumps(topology: Topology) -> str:
    """Return the document; what is unknown is left out."""
    instance("topology", topology, Topology)
    return json.dumps({KEY: VERSION, **_plain(topology)}, indent=1) + "\n"


def save(topology: Topology, path: str | Path) -> None:
    """Write a topology to a file, as JSON.

    Args:
        topology: What is written.
        path: Of the file, which is made or overwritten.

    Raises:
        UsageError: It is no Topology, or the file cannot be written.

    Example:
        >>> topology.save(topology.cluster(2), f"{folder}/two.json")
    """
    text, name = dumps(topology), filename("path", path)
    try:
        Path(name).write_text(text)
    except (OSError, ValueError) as error:  # the second: characters that no path has
        raise UsageError(
            f"path {_shown(name)} cannot be written: {_why(error)}; want that of a file"
        ) from error


def load(path: str | Path) -> Topology:
    """Read a topology from a file.

    Args:
        path: Of the file, which `save` wrote, or a user.

    Returns:
        The Topology.

    Raises:
        UsageError: The file cannot be read, or a place in it, which the text names, is wrong.

    Example:
        >>> topology.save(topology.cluster(2), f"{folder}/two.json")
        >>> topology.load(f"{folder}/two.json") == topology.cluster(2)
        True
    """
    name = filename("path", path)
    try:
        text = Path(name).read_text()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"path {_shown(name)} cannot be read: {_why(error)}; want that of a topology's document"
        ) from error
    try:
        return loads(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def _shown(path: str) -> str:
    return repr(path) if len(path) < 256 else quoted(path)  # its end tells most


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def loads(text: str) -> Topology:
    """Read a document; UsageError names the place that is wrong."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"no JSON: {error}") from error
    if not isinstance(document, dict) or KEY not in document:
        raise UsageError(f"no topology: want an object with {KEY!r}")
    version = document.pop(KEY)
    if version != VERSION:
        raise UsageError(f"{KEY} is {quoted(version)}, this pycoll reads {VERSION}")
    found: Topology = _read(Topology, document, "topology")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _plain(item) for name, item in pairs if item is not None and item != ()}
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """Return ``value`` as ``kind``: a dataclass, a tuple, an optional or a plain value."""
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where} is {quoted(value)}, want a list")
        of = typing.get_args(kind)[0]
        return tuple(_read(of, item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{where} is {quoted(value)}, want {_WORDS[kind]}")
    if kind is not float:
        return value
    try:
        found = float(value)
    except OverflowError:  # an integer of hundreds of digits
        found = math.inf
    if not math.isfinite(found):
        raise UsageError(f"{where} is {quoted(value)}, want a finite number")
    return found


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {quoted(value)}, want an object")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise UsageError(f"{where} has {quoted(name)}, want only {', '.join(fields)}")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise UsageError(f"{where} lacks {name!r}")
    given = {
        name: _read(hints[name], item, f"{where}.{name}" if where != "topology" else name)
        for name, item in value.items()
    }
    try:
        return kind(**given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}" if where != "topology" else str(error)) from error
