"""Streams and events of CUDA, as far as calls are ordered by them."""

from __future__ import annotations

import contextlib

from pycoll.errors import PycollError
from pycoll.runtime.native import cuda


class Event:
    """A moment in the order of a stream."""

    def __init__(self, number: int, stream: int) -> None:
        self._number = number
        self._handle = cuda.event(number)
        try:
            cuda.event_record(number, self._handle, stream)
        except BaseException:
            self.__del__()
            raise

    def hold_back(self, stream: int) -> None:
        """Let what is enqueued on a stream from now on begin behind this."""
        cuda.stream_after(self._number, stream, self._handle)

    def happened(self) -> bool:
        """Tell whether it has happened."""
        return cuda.event_query(self._number, self._handle)

    def __del__(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            with contextlib.suppress(PycollError):  # the process ends, and the driver before it
                cuda.event_free(self._number, handle)
