"""Streams and events of CUDA, as far as calls are ordered by them."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

from pycoll.errors import PycollError, UsageError, quoted
from pycoll.runtime import bindings_cuda


class Event:
    """A moment in the order of a stream."""

    def __init__(self, number: int, stream: int) -> None:
        self._number = number
        self._handle = bindings_cuda.event(number)
        try:
            bindings_cuda.event_record(number, self._handle, stream)
        except BaseException:
            self.__del__()
            raise

    def hold_back(self, stream: int) -> None:
        """Let what is enqueued on a stream from now on begin behind this."""
        bindings_cuda.stream_after(self._number, stream, self._handle)

    def happened(self) -> bool:
        """Tell whether it has happened."""
        return bindings_cuda.event_query(self._number, self._handle)

    def __del__(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            with contextlib.suppress(PycollError):  # the process ends, and the driver before it
                bindings_cuda.event_free(self._number, handle)


def handle_of(stream: Any) -> int:
    """Return CUDA's handle of a stream, such as one of torch or cupy.

    Raises:
        UsageError: It is none.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr"):  # torch; cupy
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    try:
        number = operator.index(stream)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise UsageError(
            f"on_stream: stream is {quoted(stream)}, want a stream of torch or cupy, an object "
            "with __cuda_stream__, or CUDA's handle as an integer"
        )
    return number
