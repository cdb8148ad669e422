"""Arrays in the host's memory, as numpy sees them: its own, by the buffer protocol, by DLPack."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pycoll.arrays.dtype import dtype_of
from pycoll.arrays.view import Family
from pycoll.dtypes import DType
from pycoll.errors import UsageError


def _array(x: Any, who: str) -> Any:
    # The library may be half imported, by another thread, which this and the others allow for.
    ndarray: Any = getattr(sys.modules.get("numpy"), "ndarray", ())
    return x if isinstance(x, ndarray) else None


def _empty(whole: Any, shape: tuple[int, ...], dtype: DType | None) -> Any:
    import numpy

    return numpy.empty(shape, numpy.asarray(whole).dtype if dtype is None else dtype.name)


#: Arrays of numpy; a subclass is one like any other.
NUMPY = Family(
    take=_array,
    dtype=lambda whole, who: dtype_of(whole.dtype, who),
    contiguous=lambda whole: whole.flags.c_contiguous,
    address=lambda whole: whole.__array_interface__["data"][0],
    copy="numpy.ascontiguousarray({})",
    empty=_empty,
    writable=lambda whole: whole.flags.writeable,
)


def _taken(x: Any, who: str) -> Any:
    if not hasattr(x, "__dlpack__"):
        return None
    import numpy

    try:
        return numpy.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(x, _tracers()):
            raise UsageError(
                f"{who} is a {type(x).__name__}: what JAX traces (jit, grad, vmap) has no memory "
                "yet; call outside of it, or pass the call to jax.pure_callback"
            ) from None
        cure = "; pass numpy.asarray(x)" if hasattr(x, "__array__") else ""
        raise UsageError(
            f"{who} is a {type(x).__name__} whose memory cannot be shared: "
            f"{' '.join(str(error).split())}{cure}"
        ) from error


def _tracers() -> Any:
    """Return the class of the stand-ins with which JAX traces a function, where it is loaded."""
    return getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", ())


#: What numpy takes by DLPack: that keeps alive what it was taken of.
DLPACK = replace(NUMPY, take=_taken)


def _buffer(x: Any, who: str) -> memoryview | None:
    try:
        return memoryview(x)
    except (TypeError, BufferError):  # the second where the protocol has no name for its dtype
        return None


def _seen(buffer: memoryview) -> Any:
    import numpy

    return numpy.asarray(buffer)


def _dtype(buffer: memoryview, who: str) -> DType:
    try:
        return dtype_of(_seen(buffer).dtype, who)
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{who} has elements of format {buffer.format!r} in the buffer protocol, which numpy "
            "does not read; pass memoryview(x).cast('B')"
        ) from None


#: Objects with the buffer protocol, by a memoryview, which holds the memory where it is.
BUFFER = replace(
    NUMPY,
    take=_buffer,
    dtype=_dtype,
    contiguous=lambda buffer: buffer.c_contiguous,
    address=lambda buffer: NUMPY.address(_seen(buffer)),
    copy="a copy",
    writable=lambda buffer: not buffer.readonly,
    flat=lambda buffer: _seen(buffer).reshape(-1),
    # A memoryview of several axes cannot be sliced.
    rows=lambda buffer, first, end: (buffer if buffer.ndim == 1 else _seen(buffer))[first:end],
)
