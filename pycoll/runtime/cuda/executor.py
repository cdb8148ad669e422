"""Cuda: runs plans on arrays in a GPU's memory, by kernels on the streams of their caller."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pycoll.arrays import families
from pycoll.arrays.cupy import device as device_of_cupy
from pycoll.arrays.dtype import dtype_of
from pycoll.arrays.interface import INTERFACE, LEGACY, handle_of
from pycoll.arrays.torch import device as device_of_torch
from pycoll.dtypes import BFLOAT16, DType
from pycoll.errors import UsageError, quoted
from pycoll.runtime.call_site import user_line
from pycoll.runtime.cuda import nvtx
from pycoll.runtime.cuda.device_comm import DeviceComm, Gpu
from pycoll.runtime.cuda.fast_path import FastPath
from pycoll.runtime.cuda.list_call import DeviceListCall
from pycoll.runtime.cuda.stream import Event
from pycoll.runtime.cuda.work import StreamWork
from pycoll.runtime.host.heap import lengths, numpy_dtype
from pycoll.runtime.native import cuda as bindings_cuda
from pycoll.runtime.plan.cache import BoundPlan
from pycoll.runtime.plan.options import CallOptions
from pycoll.runtime.plan.persistent import Plan

if TYPE_CHECKING:
    from pycoll.arrays.view import ArrayView
    from pycoll.cost import Explanation
    from pycoll.dtypes import ReduceOp
    from pycoll.runtime.host.executor import HostExecutor
    from pycoll.runtime.plan.buckets import Pair
    from pycoll.runtime.plan.call import Call, Wanted
    from pycoll.runtime.plan.request import CollectiveKind, Request

#: CUDA counts devices by a C int.
_MOST_DEVICE = 2**31 - 1

#: One part of a call: a plan with the addresses of its arrays.
Part = tuple[BoundPlan, int, int]


class CudaExecutor:
    """The executor of arrays in the memory of one GPU."""

    def __init__(self, host: HostExecutor) -> None:
        self._host = host
        self._plane: DeviceComm | None = None
        self._opened = 0  #: how often that was tried, on every rank alike
        self._chosen: int | None = None  #: the stream that the user has said
        self._quick = FastPath()

    # The plane.

    def open(self, number: int | None = None, timeout: float | None = None) -> DeviceComm:
        """Return the plane; make it first if need be, which all ranks do together.

        Args:
            number: Of the device; by default the one that torch or cupy uses, or else one for each
                rank of a host in turn.
            timeout: Seconds until the others have come.

        Raises:
            UsageError: The plane is on another GPU.
            UnavailableError: A rank has no such GPU, or what it needs is missing.
        """
        plane = self._plane
        if plane is not None:
            if number not in (None, plane.device):
                raise UsageError(
                    f"an array is on cuda:{number}, and the GPU of this communicator is "
                    f"cuda:{plane.device}; a rank uses one GPU: move the array there"
                )
            return plane
        engine = self._host.engine
        found = self._device() if number is None else _number(number)
        with engine.aside():
            self._host.arrive(CallOptions(timeout=timeout, purpose="cuda()"))
            self._opened += 1
            make = functools.partial(DeviceComm, device=found, proofs=self._host.plans.proofs)
            everyone = list(range(engine.world.size))
            plane = engine.found(everyone, f"cuda {self._opened}", make)
            plane.follow(engine)
            self._plane = plane
        return plane

    def describe(self, number: int | None, timeout: float | None) -> Gpu:
        """Return what the communicator has on its GPU."""
        return self.open(number, timeout).gpu

    def empty(self, shape: int | Iterable[int], dtype: Any) -> Any:
        """Return an array that all ranks reach, whose elements have no set value."""
        name = str(dtype).removeprefix("torch.")
        kind = BFLOAT16 if name == "bfloat16" else dtype_of(numpy_dtype(dtype), "empty")
        return self.open().device_heap.empty(lengths(shape), kind)

    def new(self, like: ArrayView, shape: tuple[int, ...], dtype: DType | None = None) -> ArrayView:
        """Return a new array like another, and by default of its dtype: a CudaArray, or better."""
        if like.family is not INTERFACE:
            return families.empty(like, shape, dtype)
        stream = self.stream([like], "the array")
        plane = self._opened_for(like.device.number, stream, None, "a call without out=")
        made = plane.device_heap.array(shape, dtype or like.dtype)
        return families.look(made, "the new array")

    def explain(self, collective: str, nbytes: int) -> Explanation:
        """Return which algorithm runs, and why."""
        if self._plane is None:
            raise UsageError(
                "explain: this communicator has no GPU yet; call comm.cuda() on all ranks"
            )
        return self._plane.selection.explain(collective, nbytes)

    def _device(self) -> int:
        for current in (device_of_torch(), device_of_cupy()):
            if current is not None:
                return current
        return self._host.engine.bootstrap.local_rank % max(1, bindings_cuda.devices())

    @contextlib.contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        """Enqueue calls on this stream, whatever is current."""
        before, self._chosen = self._chosen, handle_of(stream)
        try:
            yield
        finally:
            self._chosen = before

    def stream(self, views: Sequence[ArrayView], who: str) -> int:
        """Return the stream that a call on these arrays is ordered by."""
        if self._chosen is not None:
            return self._chosen
        # Libraries say 0, interfaces 1, and mean the same stream.
        found = {each.stream() or LEGACY for each in views}
        if len(found) > 1:
            raise UsageError(
                f"{who}: its arrays are ordered by different streams; say which one it is to run "
                "on: with comm.on_stream(s):"
            )
        return found.pop()

    # Calls.

    def again(
        self, kind: CollectiveKind, x: Any, out: Any, op: ReduceOp, asked: CallOptions
    ) -> tuple[Any] | None:
        """Enqueue a call that is like an earlier one; None: it has to be looked at.

        A stream that the user has said is left to `run`, for then allocators have to be told.
        """
        found = self._quick.find(kind.collective.name, x, out, op, asked)
        plane = self._plane
        if found is None or plane is None or found.spot.number != plane.device:
            return None
        family = found.spot.family
        if self._chosen is None:
            stream = family.stream(plane.device, found.spot.given)
        elif family is INTERFACE:
            stream = self._chosen
        else:
            return None
        self.enqueue(plane, [(found.plan, found.x, found.out)], stream, None)
        if family is INTERFACE:
            plane.held.add((x, out), stream)
        return (found.result,)

    def run(self, request: Request, asked: CallOptions) -> Any:
        """Enqueue a call, and return its result, which is there when the stream has come to it."""
        stream = self.stream(request.views, request.call.collective)
        plane, plan = self._ready(request, asked, stream)
        self.enqueue(plane, [(plan, *request.addresses)], stream, asked.timeout, _copying(request))
        self.hold(plane, request.views, stream)
        self._keep(plane, request, stream)
        if asked.repeats:
            self._quick.learn(asked, request, plan)
        return request.result

    def submit(self, request: Request, asked: CallOptions) -> StreamWork:
        """Enqueue a call on the communicator's own stream, behind what is enqueued so far."""
        stream = self.stream(request.views, request.call.collective)
        plane, plan = self._ready(request, asked, stream)
        parts = [(plan, *request.addresses)]
        work = self.begin(
            plane, parts, stream, asked.timeout, request.views, request.result, _copying(request)
        )
        self._keep(plane, request, stream)
        return work

    def begin(
        self,
        plane: DeviceComm,
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
        text = parts[0][0].text if parts else "nothing"
        seconds = plane.timeout if timeout is None else timeout
        works, own = self._host.works, plane.stream
        again = functools.partial(self.stream, views, text) if views else (lambda: stream)
        work = StreamWork(
            plane, f"{text} at {user_line()}", seconds, (works.owner(), views, pins), again, result
        )
        Event(plane.device, stream).hold_back(own)
        self.enqueue(plane, parts, own, timeout, before, after)
        for each in views:
            each.record(own)  # the Work holds it in any case
        return work.launched(Event(plane.device, own), plane.capturing(own))

    def bind(self, request: Request, asked: CallOptions) -> Plan:
        """Bind a call to its arrays; each run is enqueued on the stream that is current then."""
        views, who = request.views, request.call.collective
        plane, plan = self._ready(request, asked, self.stream(views, who))
        part, copying = (plan, *request.addresses), _copying(request)

        def start() -> Any:
            stream = self.stream(views, who)
            self.enqueue(plane, [part], stream, asked.timeout, copying)
            self._keep(plane, request, stream)
            return request.result

        mapped = all(plane.device_heap.holds(array.address, array.nbytes) for array in views)
        pins = (self._host.works.owner(), request, plan)
        return Plan(
            plane,
            start,
            request.result,
            plan.text,
            plan.direct if mapped and plan.direct else plan.algorithm,
            plan.transport,
            asked.timeout,
            pins,
        )

    def listed(
        self, kind: CollectiveKind, pairs: Sequence[Pair], op: ReduceOp, asked: CallOptions
    ) -> DeviceListCall:
        """Return a call of a list of arrays."""
        return DeviceListCall(self, kind, pairs, op, asked, self._host)

    def enqueue(
        self,
        plane: DeviceComm,
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
                before(plane, stream)
            for plan, x, out in parts:
                plane.launch(plan.handle, x, out, stream, timeout, plan.text)
            if after is not None:
                after(plane, stream)
        finally:
            if ranges is not None and parts:
                ranges.pop()

    def hold(self, plane: DeviceComm, views: Sequence[ArrayView], stream: int) -> None:
        """See to it that arrays are not freed before the GPU is done with them."""
        for each in views:
            # A library frees in the order of its own current stream: there nothing is to be done.
            if each.family is not INTERFACE:
                if self._chosen is None or each.stream() == stream:
                    continue
                if each.record(stream):
                    continue
            plane.held.add(each, stream)

    def keep(self, plane: DeviceComm, buffers: Sequence[ArrayView], stream: int) -> None:
        """Keep what is not the user's as long as a graph may use it, if one is being captured."""
        if buffers and plane.capturing(stream):
            plane.held.for_graph(list(buffers))

    def _keep(self, plane: DeviceComm, request: Request, stream: int) -> None:
        if request.copy is not None:
            self.keep(plane, request.copy[1:], stream)

    def find(
        self, call: Call, wanted: Wanted, timeout: float | None, number: int, stream: int
    ) -> tuple[DeviceComm, BoundPlan]:
        """Return the plan of a call on a device; make what is missing unless that cannot be now."""
        plane = self._opened_for(number, stream, timeout, call.text(None))
        plane.require_usable(call.collective)
        if not plane.plans.known(call, wanted) and plane.capturing(stream):
            self._refuse_capture(call.text(None))
        return plane, plane.plans.find(call, wanted, timeout)

    def _opened_for(self, number: int, stream: int, timeout: float | None, what: str) -> DeviceComm:
        if (
            self._plane is None
            and bindings_cuda.capturing(number, stream)[0] != bindings_cuda.NO_CAPTURE
        ):
            self._refuse_capture(what)
        return self.open(number, timeout)

    def _refuse_capture(self, what: str) -> NoReturn:
        raise UsageError(
            f"{what} is captured into a graph, and has no plan yet, which takes memory "
            "and messages; make one such call, or comm.plan of it, before the capture"
        )

    def _ready(
        self, request: Request, asked: CallOptions, stream: int
    ) -> tuple[DeviceComm, BoundPlan]:
        number = request.device.number
        return self.find(request.call, asked.algorithm, asked.timeout, number, stream)


def _number(device: Any) -> int:
    try:
        number = operator.index(device)
    except TypeError:
        number = -1
    if not 0 <= number <= _MOST_DEVICE:
        raise UsageError(f"cuda: device is {quoted(device)}, want the number of a GPU, 0 or more")
    return number


def _copying(request: Request) -> Callable[[DeviceComm, int], None] | None:
    if request.copy is None:
        return None
    x, copy = request.copy

    def enqueue(plane: DeviceComm, stream: int) -> None:
        if x.nbytes:
            bindings_cuda.copy(plane.device, copy.address, x.address, x.nbytes, stream)

    return enqueue
