"""Streams: a communicator's GPU, and what enqueues plans on the streams of their caller."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pycoll.arrays import families
from pycoll.arrays.cupy import device as device_of_cupy
from pycoll.arrays.interface import INTERFACE, LEGACY, handle_of
from pycoll.arrays.torch import device as device_of_torch
from pycoll.dtypes import DType
from pycoll.errors import UsageError, quoted
from pycoll.runtime.call_site import user_line
from pycoll.runtime.cuda import nvtx
from pycoll.runtime.cuda.device_comm import DeviceComm
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.cuda.work import StreamWork
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.plan.cache import BoundPlan
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.host.executor import HostExecutor
    from pycoll.runtime.plan.call import Call
    from pycoll.runtime.plan.options import Asked

#: CUDA counts devices by a C int.
_MOST_DEVICE = 2**31 - 1

#: One part of a call: a plan with the addresses of its arrays.
Part = tuple[BoundPlan, int, int]


class Streams:
    """A communicator's GPU, and what enqueues calls on its streams.

    Args:
        host: The executor of the same communicator's calls in the host's memory.
    """

    def __init__(self, host: HostExecutor) -> None:
        self.host = host
        self.dc: DeviceComm | None = None  #: until the first array of a GPU
        self.chosen: int | None = None  #: the stream that the user has said
        self._opened = 0  #: how often it was tried to open the GPU, on every rank alike

    def open(self, number: int | None = None, timeout: float | None = None) -> DeviceComm:
        """Return the dc; make it first if need be, which all ranks do together.

        Args:
            number: Of the device; by default the one that torch or cupy uses, or else one for each
                rank of a host in turn.
            timeout: Seconds until the others have come.

        Raises:
            UsageError: The dc is on another GPU.
            UnavailableError: A rank has no such GPU, or what it needs is missing.
        """
        dc = self.dc
        if dc is not None:
            if number not in (None, dc.device):
                raise UsageError(
                    f"an array is on cuda:{number}, and the GPU of this communicator is "
                    f"cuda:{dc.device}; a rank uses one GPU: move the array there"
                )
            return dc
        engine = self.host.engine
        found = self._device() if number is None else _number(number)
        with engine.order.aside():
            self.host.arrive(CallOptions(timeout=timeout, purpose="cuda()"))
            self._opened += 1
            make = functools.partial(DeviceComm, device=found, proofs=self.host.plans.proofs)
            everyone = list(range(engine.world.size))
            dc = engine.found(everyone, f"cuda {self._opened}", make)
            dc.engine.follow(engine)
            self.dc = dc
        return dc

    def _device(self) -> int:
        for current in (device_of_torch(), device_of_cupy()):
            if current is not None:
                return current
        return self.host.engine.bootstrap.local_rank % max(1, bindings_cuda.devices())

    @contextlib.contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        """Enqueue calls on this stream, whatever is current."""
        before, self.chosen = self.chosen, handle_of(stream)
        try:
            yield
        finally:
            self.chosen = before

    def stream(self, views: Sequence[ArrayView], who: str) -> int:
        """Return the stream that a call on these arrays is ordered by."""
        if self.chosen is not None:
            return self.chosen
        # Libraries say 0, interfaces 1, and mean the same stream.
        found = {each.stream() or LEGACY for each in views}
        if len(found) > 1:
            raise UsageError(
                f"{who}: its arrays are ordered by different streams; say which one it is to run "
                "on: with comm.on_stream(s):"
            )
        return found.pop()

    def new(self, like: ArrayView, shape: tuple[int, ...], dtype: DType | None = None) -> ArrayView:
        """Return a new array like another, and by default of its dtype: a CudaArray, or better."""
        if like.family is not INTERFACE:
            return families.empty(like, shape, dtype)
        stream = self.stream([like], "the array")
        dc = self.opened_for(like.device.number, stream, None, "a call without out=")
        made = dc.device_heap.array(shape, dtype or like.dtype)
        return families.look(made, "the new array")

    def find(
        self, call: Call, asked: Asked, timeout: float | None, number: int, stream: int
    ) -> tuple[DeviceComm, BoundPlan]:
        """Return the plan of a call on a device; make what is missing unless that cannot be now."""
        dc = self.opened_for(number, stream, timeout, call.text(None))
        dc.engine.life.require_usable(call.collective)
        if not dc.plans.known(call, asked) and dc.capturing(stream):
            self._refuse_capture(call.text(None))
        return dc, dc.plans.find(call, asked, timeout)

    def take_part(self, stream: int) -> Callable[[], None]:
        """Put calls with ``async_op`` on a part's stream from now on; returns what ends that."""
        dc = self.open()
        dc.parts.append(stream)
        return lambda: dc.parts.remove(stream)

    def opened_for(
        self, number: int | None, stream: int, timeout: float | None, what: str
    ) -> DeviceComm:
        """Return the dc for a call of all ranks; make it first if need be, unless that cannot be.

        Args:
            number: Of the device; None where the arrays are empty.
            stream: That the call is ordered by.
            timeout: Seconds until the others have come.
            what: The call.
        """
        if (
            self.dc is None
            and bindings_cuda.capturing(number or 0, stream)[0] != bindings_cuda.NO_CAPTURE
        ):
            self._refuse_capture(what)
        return self.open(number, timeout)

    def _refuse_capture(self, what: str) -> NoReturn:
        raise UsageError(
            f"{what} is captured into a graph, and has no plan yet, which takes memory "
            "and messages; make one such call, or comm.plan of it, before the capture"
        )

    def enqueue(
        self,
        dc: DeviceComm,
        parts: Sequence[Part],
        stream: int,
        timeout: float | None,
        before: Callable[[DeviceComm, int], None] | None = None,
        after: Callable[[DeviceComm, int], None] | None = None,
    ) -> None:
        """Enqueue copies and plans on a stream, within a range for profilers."""
        ranges = nvtx.ranges()
        if ranges is not None and parts:
            plan = parts[0][0]
            ranges.push(f"pycoll {plan.text}, {plan.nbytes} B by {plan.algorithm}".encode())
        try:
            if before is not None:
                with dc.in_order(stream):
                    before(dc, stream)
            for plan, x, out in parts:
                dc.launch(plan.handle, x, out, stream, timeout, plan.text)
            if after is not None:
                with dc.in_order(stream):
                    after(dc, stream)
        finally:
            if ranges is not None and parts:
                ranges.pop()

    def hold(self, dc: DeviceComm, views: Sequence[ArrayView], stream: int) -> None:
        """See to it that arrays are not freed before the GPU is done with them.

        The heap sees to its own, at moments that are alike on all ranks: so their next arrays lie
        at one offset, as a switch wants them.
        """
        for each in views:
            # A library frees in the order of its own current stream: there nothing is to be done.
            if each.family is not INTERFACE:
                if self.chosen is None or each.stream() == stream:
                    continue
                # A part's stream goes before the allocator, which would ask it later.
                if stream not in dc.parts and each.record(stream):
                    dc.told = dc.told or stream == dc.stream
                    continue
            if not dc.device_heap.owns(each.owner):
                dc.held.add(each, stream)

    def keep(self, dc: DeviceComm, buffers: Sequence[ArrayView], stream: int) -> None:
        """Keep what is not the user's as long as a graph may use it, if one is being captured."""
        if buffers and dc.capturing(stream):
            dc.held.for_graph(list(buffers))

    def begin(
        self,
        dc: DeviceComm,
        parts: list[Part],
        stream: int,
        timeout: float | None,
        views: Sequence[ArrayView],
        result: Any,
        before: Callable[[DeviceComm, int], None] | None = None,
        after: Callable[[DeviceComm, int], None] | None = None,
        pins: Any = None,
    ) -> StreamWork:
        """Enqueue parts on the communicator's own stream, and return the Work."""

        def enqueue(own: int) -> None:
            self.enqueue(dc, parts, own, timeout, before, after)

        text = parts[0][0].text if parts else "nothing"
        return self.beside(dc, text, enqueue, stream, timeout, views, result, pins)

    def beside(
        self,
        dc: DeviceComm,
        text: str,
        enqueue: Callable[[int], None],
        stream: int,
        timeout: float | None,
        views: Sequence[ArrayView],
        result: Any,
        pins: Any = None,
    ) -> StreamWork:
        """Have ``enqueue`` called with the communicator's own stream, and return the Work."""
        seconds = dc.timeout if timeout is None else timeout
        works, own = self.host.works, dc.aside
        again = functools.partial(self.stream, views, text) if views else (lambda: stream)
        work = StreamWork(
            dc, f"{text} at {user_line()}", seconds, (works.owner(), views, pins), again, result
        )
        Event(dc.device, stream).hold_back(own)
        enqueue(own)
        for each in views:
            if own == dc.stream and each.record(own):  # the Work holds it in any case
                dc.told = True
        return work.launched(Event(dc.device, own), dc.capturing(own))


def _number(device: Any) -> int:
    try:
        number = operator.index(device)
    except TypeError:
        number = -1
    if not 0 <= number <= _MOST_DEVICE:
        raise UsageError(f"cuda: device is {quoted(device)}, want the number of a GPU, 0 or more")
    return number
