"""Arguments: whether numbers, and the fields of public records, are what their types promise."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

from pycoll.errors import UsageError, quoted

#: What a number must at least be an instance of; numpy's are instances of these, too.
_NUMBERS = {int: numbers.Integral, float: numbers.Real}
_MAX_SECONDS = 86400  #: of a timeout
_WORDS = {
    str: "text",
    int: "an integer of at least 0",
    float: "a finite number of at least 0",
    bool: "True or False",
}


def integer(what: str, value: object, least: int, most: int | None = None) -> int:
    """Return an integer of at least ``least`` and at most ``most``; UsageError names ``what``."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"{what} is {quoted(value)}, want an integer of at least {least}"
        ) from None
    if number < least:
        raise UsageError(f"{what} is {quoted(number)}, want at least {least}")
    if most is not None and number > most:
        raise UsageError(f"{what} is {quoted(number)}, want {least} to {most}")
    return number


def number(what: str, value: object, above_zero: bool = False) -> float:
    """Return a finite number of at least 0, or above it; UsageError names ``what``."""
    if not _is_number(value, float) or value < 0 or (above_zero and value == 0):  # type: ignore[operator]
        least = "more than 0" if above_zero else "at least 0"
        raise UsageError(f"{what} is {quoted(value)}, want a finite number of {least}")
    return float(value)  # type: ignore[arg-type]


def flag(what: str, value: object) -> bool:
    """Return True or False; UsageError names ``what``."""
    if not isinstance(value, bool):
        raise UsageError(f"{what} is {quoted(value)}, want True or False")
    return value


def filename(what: str, value: object) -> str:
    """Return the path of a file as text; UsageError names ``what``."""
    if not isinstance(value, str | os.PathLike) or not isinstance(found := os.fspath(value), str):
        raise UsageError(f"{what} is {quoted(value)}, want the path of a file")
    return found


def instance(what: str, value: object, kind: type) -> None:
    """Check that a value is an instance of a class; UsageError names ``what``."""
    if not isinstance(value, kind):
        raise UsageError(f"{what} is {quoted(value)}, want a {kind.__name__}")


def require_fields(record: object) -> None:
    """Check the fields of a dataclass against their types; a list becomes the tuple it stands for.

    Text, integers, numbers, flags, other classes, tuples of them, and None beside them.

    Raises:
        UsageError: A value is of another type, or a number is not finite, or below 0.
    """
    for field in _fields_of(record):
        value = getattr(record, field.name)
        if value is None and field.optional:
            continue
        if field.many and isinstance(value, list):
            value = tuple(value)
            object.__setattr__(record, field.name, value)  # the record may be frozen
        if not _fits(field, value):
            raise UsageError(
                f"{named(record, field.name)}: {field.name} is {quoted(value)}, want {_want(field)}"
            )


class _Field(NamedTuple):
    name: str
    kind: type  #: of the value, or of each in a tuple
    optional: bool
    many: bool


def _fields_of(record: object) -> tuple[_Field, ...]:
    kind: Any = type(record)
    return _fields(kind)


@functools.cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(_field(f.name, hints[f.name]) for f in dataclasses.fields(kind))


def _field(name: str, hint: Any) -> _Field:
    optional = isinstance(hint, types.UnionType)
    if optional:
        (hint,) = (k for k in typing.get_args(hint) if k is not types.NoneType)
    many = typing.get_origin(hint) is tuple
    return _Field(name, typing.get_args(hint)[0] if many else hint, optional, many)


def _fits(field: _Field, value: object) -> bool:
    kind = field.kind
    if field.many:
        return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)
    if kind is int or kind is float:
        return _is_number(value, kind) and value >= 0  # type: ignore[operator]
    return isinstance(value, kind)


def _is_number(value: object, kind: type) -> bool:
    """Tell whether a value is a finite number, and no truth value."""
    if type(value) is not kind and (
        isinstance(value, bool) or not isinstance(value, _NUMBERS[kind])
    ):
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer that no float holds
        return kind is int


def _want(field: _Field) -> str:
    one = _WORDS.get(field.kind, f"a {field.kind.__name__}")
    if field.many:
        one = f"a tuple, of {'text' if field.kind is str else field.kind.__name__} alone"
    return f"{one}, or None" if field.optional else one


def row(what: str, value: object) -> tuple[Any, ...]:
    """Return a list or another sequence as a tuple; UsageError names ``what``."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise UsageError(f"{what} is {quoted(value)}, want a list")
    return tuple(value)


def named(record: object, until: str = "") -> str:
    """Return what a dataclass is called: its class, and one or two texts that it begins with."""
    texts: list[str] = []
    for field in _fields_of(record):
        value = getattr(record, field.name)
        if field.name == until or not isinstance(value, str):
            break
        texts.append(quoted(value))
    return f"{type(record).__name__} {', '.join(texts[:2])}".strip()


def check_timeout(what: str, timeout: Any) -> float | None:
    """Return a timeout that a user gave; UsageError if it is none."""
    if timeout is None:
        return None
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if number and 0 < timeout <= _MAX_SECONDS:
        return float(timeout)
    raise UsageError(
        f"{what}: timeout is {quoted(timeout)}, want seconds, more than 0 and at most "
        f"{_MAX_SECONDS}, or None"
    )
