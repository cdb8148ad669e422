"""Streams and events of CUDA, as far as calls are ordered by them."""

from __future__ import annotations

import contextlib

from pycoll.errors import PycollError
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
