"""The DTypes of other libraries' dtypes, and which of them are reduced."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from pycoll.dtypes import DTYPES, MOVED, DType, element
from pycoll.errors import UsageError

if TYPE_CHECKING:
    import numpy


def require_reduced(dtype: DType, who: str) -> None:
    """Check that a reduction serves a dtype; UsageError says what to pass instead."""
    if not dtype.reduces:
        names = ", ".join(d.name for d in DTYPES)
        raise UsageError(
            f"{who} has dtype {dtype.name}, which can be moved but not reduced; "
            f"{_cure(dtype)} (reduced: {names})"
        )


def _cure(dtype: DType) -> str:
    name = dtype.name
    if name in ("complex64", "complex128"):
        real = "float32" if name == "complex64" else "float64"
        return f"pass its real and imaginary parts as one real array, x.view('{real}')"
    if name == "bool":
        return "pass x.view('uint8'): max is any, min is all"
    if name.startswith((">", "<")):
        return "pass x.astype(x.dtype.newbyteorder('='))"
    return "convert it to one that is"


def named(name: str) -> DType | None:
    """Return the DType that native code knows by this name, if there is one."""
    return _NAMED.get(name)


def dtype_named(name: str, who: str) -> DType:
    """Return the DType that a library without numpy's dtypes calls ``name``; UsageError if none."""
    found = named(name)
    if found is None:
        raise UsageError(f"{who} has dtype {name}, want one of {', '.join(_NAMED)}")
    return found


_NAMED = {d.name: d for d in (*DTYPES, *MOVED)}


def dtype_of(kind: numpy.dtype[Any], who: str) -> DType:
    """Return the DType of a dtype of numpy.

    Raises:
        UsageError: Its elements are not of a fixed number of bytes, such as Python's objects.
    """
    found = _NUMPY_DTYPES.get(kind)
    if found is None:
        if kind.hasobject or kind.itemsize == 0:
            raise UsageError(
                f"{who} has dtype {kind.name}, want elements of a fixed number of bytes, at least "
                "one; Python's objects are for broadcast_object, allgather_object, gather_object "
                "and scatter_object"
            )
        found = _NUMPY_DTYPES[kind] = element(_name(kind), kind.itemsize)
    return found


def _name(kind: numpy.dtype[Any]) -> str:
    """Name a dtype of numpy so that no two are called alike."""
    import numpy

    if kind.names is not None:
        # A record array's is the same type under another class. Long ones are cut for messages.
        text = str(numpy.dtype((numpy.void, kind)))
        if len(text) <= _LONGEST_NAME:
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return f"{text[:_LONGEST_NAME]}...#{digest}"
    if not kind.isnative:
        return kind.str
    return kind.str[1:] if kind.type in (numpy.bytes_, numpy.str_, numpy.void) else kind.name


_LONGEST_NAME = 60

#: numpy.dtype → DType of those that were seen; a dtype takes long to tell its name.
_NUMPY_DTYPES: dict[Any, DType] = {}
