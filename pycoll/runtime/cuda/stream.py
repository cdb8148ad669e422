"""Streams and events of CUDA, as far as calls are ordered by them.

A stream that torch's allocator was told of lives as long as the process: the allocator records an
event there when the tensor is freed, which may be after the communicator is closed. Later
communicators use it again.
"""

from __future__ import annotations

import contextlib

from pycoll.errors import PycollError
from pycoll.runtime.native import cuda

_kept: dict[int, list[int]] = {}  #: by device, those that no communicator has


def made(number: int) -> int:
    """Return a stream of the highest priority: a new one, or one that was kept."""
    kept = _kept.get(number, [])
    for stream in list(kept):
        if cuda.stream_query(number, stream):
            with contextlib.suppress(ValueError):  # another thread has taken it
                kept.remove(stream)
                return stream
    return cuda.stream(number, cuda.priorities(number)[1])


def given_back(number: int, stream: int, told: bool) -> None:
    """Destroy a stream, or keep it if an allocator was told of it."""
    if told:
        _kept.setdefault(number, []).append(stream)
    else:
        cuda.stream_free(number, stream)


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
