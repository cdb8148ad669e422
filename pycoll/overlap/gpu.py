"""One GPU: its limits, what its kernels take, streams, and events that keep time."""

from __future__ import annotations

import weakref

from pycoll.errors import UnavailableError
from pycoll.overlap.frameworks import current_device
from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import Footprint
from pycoll.runtime.native import cuda


class Event:
    """A moment in a stream."""

    def __init__(self, device: int) -> None:
        self.handle = cuda.event(device, timing=True)
        weakref.finalize(self, cuda.event_free, device, self.handle).atexit = False


class Stream:
    """A queue of the GPU. cupy and torch take it by ``__cuda_stream__``."""

    def __init__(self, device: int, priority: int) -> None:
        self.device, self.priority = device, priority
        self.ptr = cuda.stream(device, priority)  #: the driver's handle
        weakref.finalize(self, cuda.stream_free, device, self.ptr).atexit = False

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


class Gpu:
    """A GPU of this machine.

    Raises:
        UnavailableError: There is no driver, or no GPU; says what mends it.
        UsageError: There is no such GPU.
    """

    def __init__(self, device: int | None = None) -> None:
        if lack := cuda.missing():
            raise UnavailableError(f"overlap needs a GPU: {lack}")
        self.device = current_device() if device is None else device
        found = cuda.device(self.device)
        self.name, self.capability = found.name, (found.major, found.minor)
        self.limits = Limits.of(
            self.capability,
            threads=found.threads_per_multiprocessor,
            blocks=found.blocks_per_multiprocessor,
            shared=found.shared_per_multiprocessor,
            shared_per_block=found.shared_per_block_optin,
            reserved=found.shared_reserved_per_block,
            registers=found.registers_per_multiprocessor,
        )
        self._greatest = cuda.priorities(self.device)[1]

    def stream(self, high: bool) -> Stream:
        """Return a new stream, of the highest or of the default priority."""
        return Stream(self.device, self._greatest if high else 0)

    def event(self) -> Event:
        """Return a new event that keeps the time."""
        return Event(self.device)

    def seconds(self, start: Event, end: Event) -> float:
        """Return the time between two events that have happened."""
        return cuda.event_seconds(self.device, start.handle, end.handle)

    def function(self, handle: int, threads: int, dynamic: int) -> Footprint:
        """Return what a block of a kernel takes, by its CUfunction."""
        found = cuda.function_read(self.device, handle)
        return Footprint(threads, found.registers, found.shared, dynamic)

    def resident(self, handle: int, threads: int, dynamic: int) -> int:
        """Return how many blocks of a kernel an SM holds, as the driver counts."""
        return cuda.occupancy(self.device, handle, threads, dynamic)

    def room(self, handle: int, blocks: int, threads: int) -> int:
        """Return the most dynamic shared memory with which an SM holds so many blocks, in bytes."""
        return cuda.room(self.device, handle, blocks, threads)
