"""One GPU: its limits, what its kernels take, streams, and events that keep time."""

from __future__ import annotations

from typing import Any

from pycoll.errors import UnavailableError
from pycoll.overlap.frameworks import current_device
from pycoll.overlap.green import Partition
from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import Footprint
from pycoll.overlap.streams import Event, Stream
from pycoll.runtime.native import cuda


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
        self.multiprocessors = found.multiprocessors
        self.limits = Limits.of(
            self.capability,
            threads=found.threads_per_multiprocessor,
            blocks=found.blocks_per_multiprocessor,
            shared=found.shared_per_multiprocessor,
            shared_per_block=found.shared_per_block_optin,
            reserved=found.shared_reserved_per_block,
            registers=found.registers_per_multiprocessor,
        )
        self.greatest = cuda.priorities(self.device)[1]  #: priority of a stream

    def stream(self, high: bool) -> Stream:
        """Return a new stream, of the highest or of the default priority."""
        return Stream(self.device, self.greatest if high else 0)

    def partition(self, sms: int, comm: Any = None) -> Partition:
        """Part its SMs: so many for the collective, all others for the computation."""
        return Partition(self.device, sms, self.greatest, comm)

    def parts(self) -> tuple[int, int]:
        """Return the least SMs of a part, and what a part has a multiple of; zeros: no parts."""
        try:
            return cuda.multiprocessors(self.device)[1:]
        except UnavailableError:
            return 0, 0

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
