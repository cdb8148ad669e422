"""Streams of a GPU, and events that keep time."""

from __future__ import annotations

import weakref

from pycoll.runtime.native import cuda


class Event:
    """A moment in a stream."""

    def __init__(self, device: int) -> None:
        self.handle = cuda.event(device, timing=True)
        weakref.finalize(self, cuda.event_free, device, self.handle).atexit = False


class Queue:
    """A stream that is there. cupy and torch take it by ``__cuda_stream__``."""

    def __init__(self, device: int, priority: int, ptr: int) -> None:
        self.device, self.priority = device, priority
        self.ptr = ptr  #: the driver's handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol and the handle."""
        return 0, self.ptr

    def record(self, event: Event) -> None:
        """Let ``event`` happen when all that is enqueued so far has ended."""
        cuda.event_record(self.device, event.handle, self.ptr)

    def wait(self, event: Event) -> None:
        """Let what is enqueued from now on begin after ``event``."""
        cuda.stream_after(self.device, self.ptr, event.handle)

    def synchronize(self) -> None:
        """Wait on the host until everything enqueued has ended."""
        cuda.stream_wait(self.device, self.ptr)


class Stream(Queue):
    """A stream of its own, on the whole GPU."""

    def __init__(self, device: int, priority: int) -> None:
        super().__init__(device, priority, cuda.stream(device, priority))
        weakref.finalize(self, cuda.stream_free, device, self.ptr).atexit = False
