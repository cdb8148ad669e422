"""A GPU's multiprocessors in two parts: one for the collective, all others for the computation.

A part is a green context of CUDA. It has no memory, kernels or events of its own: it is the
device's primary context with fewer SMs, and a stream that was made in it keeps to them. So
pycoll's kernels, cupy's and torch's, which are loaded in the primary context, are launched on such
a stream as on any other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pycoll.errors import ClosedError, UnavailableError, UsageError
from pycoll.overlap.frameworks import made_current
from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import Footprint, resident
from pycoll.overlap.streams import Queue
from pycoll.runtime.native import cuda


def require_room(sms: int, block: Footprint, blocks: int, sm: Limits) -> None:
    """Raise UsageError where a part is too small for a collective whose blocks wait for another."""
    each = max(resident(block, sm), 1)
    if sms * each < blocks:
        raise UsageError(
            f"overlap.partition: {sms} SMs hold {sms * each} blocks of the collective at once "
            f"({each} each), and it launches up to {blocks}, which wait for one another; want at "
            f"least {-(-blocks // each)} SMs, or PYCOLL_CUDA_BLOCKS={sms * each} on every rank"
        )


class PartStream(Queue):
    """A stream whose kernels run on a part of the SMs.

    In a ``with`` block it is the current stream of cupy and of torch, where they are loaded, and
    the collective's one also that of the calls of the partition's communicator.
    """

    def __init__(self, part: cuda.Part, device: int, priority: int, comm: Any) -> None:
        super().__init__(device, priority, part.stream)
        self.sms = part.sms  #: how many multiprocessors it has
        self._comm = comm
        self._entered: list[contextlib.ExitStack] = []

    @property
    def ptr(self) -> int:
        """The driver's handle."""
        if not self._ptr:
            raise ClosedError("overlap.partition: it is closed, and so are its streams")
        return self._ptr

    @ptr.setter
    def ptr(self, value: int) -> None:
        self._ptr = value

    @property
    def entered(self) -> bool:
        """Whether a ``with`` block of it has not ended."""
        return bool(self._entered)

    def __enter__(self) -> PartStream:
        with contextlib.ExitStack() as stack:
            for each in made_current(self):
                stack.enter_context(each)
            if self._comm is not None:
                stack.enter_context(self._comm.on_stream(self))
            self._entered.append(stack.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().close()

    def __repr__(self) -> str:
        return f"<overlap stream on {self.sms} SMs of cuda:{self.device}>"


class Partition:
    """Two parts of a GPU's SMs, each with a stream; `pycoll.overlap.partition` makes it.

    As long as it is open, the communicator's calls with ``async_op=True`` are put on the
    collective's part.

    Closing waits until both streams have ended, then destroys them and their contexts. Graphs
    that were captured on them must be gone by then.
    """

    def __init__(self, device: int, sms: int, greatest: int, comm: Any = None) -> None:
        found = _parted(lambda: cuda.partition(device, sms, greatest))
        self.device, self._parts = device, found
        own, rest = found
        #: For the collective: of the highest priority, on as many SMs as were asked for.
        self.communication = PartStream(own, device, greatest, comm)
        #: For the computation: on all other SMs.
        self.computation = PartStream(rest, device, 0, None)
        self._closed = False
        self._end: Callable[[], None] = lambda: None
        if comm is not None:
            self._end = comm._collectives.launch.cuda.streams.take_part(own.stream)

    @property
    def sms(self) -> tuple[int, int]:
        """How many SMs the computation has, and the collective."""
        return self.computation.sms, self.communication.sms

    def close(self) -> None:
        """Wait for both streams, and give the SMs back; a second call does nothing.

        Raises:
            UsageError: A ``with`` block of one of its streams has not ended.
        """
        streams = self.computation, self.communication
        if self._closed:
            return
        if any(stream.entered for stream in streams):
            raise UsageError(
                "overlap.partition: close() within a with block of one of its streams; want it "
                "behind"
            )
        self._closed = True
        try:
            for stream in streams:
                stream.synchronize()
        finally:
            self._end()
            for stream in streams:
                stream.ptr = 0
            cuda.partition_free(self.device, *self._parts)

    def __enter__(self) -> Partition:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "{} SMs and {}".format(*self.sms)
        return f"<overlap.Partition of cuda:{self.device}: {state}>"


def _parted(
    call: Callable[[], tuple[cuda.Part, cuda.Part]],
) -> tuple[cuda.Part, cuda.Part]:
    try:
        return call()
    except UnavailableError as error:
        raise UnavailableError(f"overlap.partition: {error}") from error
    except UsageError as error:
        raise UsageError(f"overlap.partition: {error}") from error
