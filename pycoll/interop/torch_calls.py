"""How a process group of torch calls its Communicator: at once, or by way of Python's checks."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import profiler

from pycoll.errors import PycollError, UsageError
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_env import seconds
from pycoll.interop.torch_error import translated
from pycoll.interop.torch_future import Beside, Completer
from pycoll.interop.torch_init import Maker
from pycoll.interop.torch_tensor import CODES, Tensor
from pycoll.interop.torch_work import Done, Pending, Whole, forgotten
from pycoll.runtime.p2p import batch

_STRIDED = torch.strided
_GROUPS: weakref.WeakSet[Calls] = weakref.WeakSet()

#: Makes a call, beside the caller or not, with a timeout in seconds or None.
Call = Callable[[bool, float | None], Any]
#: Makes what has been prepared; returns what torch gets. See `torch_entry.call`.
Prepared = Callable[[], Any]


@run_as_it_is
class Calls(torch._C._distributed_c10d.ProcessGroup):  # type: ignore[misc]
    """A process group's communicator, and the ways to call it.

    Any thread may call, one at a time: a call waits for the one that another thread is inside.
    """

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._comm = maker.comm
        self._engine = maker.engine
        super().__init__(self._comm.rank, self._comm.size)
        self._pointers = self._native = self._engine.dispatcher.pointers
        self._entered = threading.RLock()  #: reentrant: a signal handler may call, and is refused
        self._over = Done()  #: one for all blocking calls: making one costs more than the rest
        self._seconds: float | None = None  #: of a call, if not the communicator's
        self._completer = Completer(f"pycoll futures of {id(self):x}")
        self._beside = Beside()
        self._coalesced: list[Pending] | None = None  #: begun since torch began to coalesce
        _GROUPS.add(self)
        self._comm._calls.shortcut(self)

    def detour(self, on: bool) -> None:
        """Leave all calls to the communicator, whose profilers see them, or do so no more."""
        self._pointers = _unserved if on else self._native

    def _at_once(self, number: int, x: Tensor, out: Tensor, op: int, root: int = 0) -> bool:
        """Run a blocking call by a plan that is known; False if it takes Python to make one.

        Args:
            number: Of the collective.
            x: What this rank brings.
            out: Where the result goes; may be ``x``. Its length is looked at, its shape is not.
            op: pycoll's number of the operation.
            root: The rank that has or gets the data.
        """
        try:  # as in `arrays.torch.pointers`, but without calls into Python
            dtype = x.dtype
            code = CODES.get(dtype)
            if (
                code is None
                or self._seconds is not None
                or profiler._is_profiler_enabled  # Python shows the call to it
                or not (x.is_cpu and x.layout is _STRIDED and x.is_contiguous())
                or x.is_neg()  # its memory holds the opposite of its elements
            ):
                return False
            start = to = x.data_ptr()
            nbytes = room = x.nbytes
            if out is not x:
                if (
                    not (out.dtype is dtype and out.is_cpu and out.layout is _STRIDED)
                    or not out.is_contiguous()
                    or out.is_neg()
                ):
                    return False
                to, room = out.data_ptr(), out.nbytes
        except Exception:  # it is no tensor, or one of a kind of its own: Python says what is wrong
            return False
        with self._entered:
            try:
                code = self._pointers(number, start, to, nbytes, room, code, op, root)
                if code:
                    self._engine.waits.finish(code)
            except BaseException as error:
                self._engine.order.refused("a collective", error)
                if isinstance(error, PycollError):
                    raise translated(error) from error
                raise
        return code is not None

    def _begins(
        self,
        opts: Any,
        result: Any,
        calls: Sequence[Call],
        arrive: Sequence[Callable[[], object] | None] = (),
    ) -> Prepared:
        """Prepare calls that are one to torch, beside the caller unless ``opts`` says otherwise.

        Args:
            opts: torch's options of the collective; None: its defaults.
            result: The tensors with the results.
            calls: In the order that all ranks make them in.
            arrive: What is to be done when all are over.
        """
        if not calls:  # the other ranks would make theirs
            raise UsageError("got an empty list of tensors, want one tensor at least")
        timeout = self._timeout(opts)
        asynchronous = opts is None or opts.asyncOp
        after = [step for step in arrive if step is not None]

        def begin() -> Any:
            with self._entered:
                parts = [call(asynchronous, timeout) for call in calls]
            if asynchronous:
                return self._noted(Pending(parts, after, result, self._completer))
            for step in after:
                step()
            return self._over

        return begin

    def _noted(self, work: Pending) -> Pending:
        if forgotten.begun:
            forgotten.sort()
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: Any) -> None:
        """Begin to note what is begun; each call still begins by itself."""
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> Any:
        """Return one work for all that was begun since."""
        works, self._coalesced = self._coalesced or [], None
        tensors = [work.tensors for work in works]
        return Pending([Whole(work) for work in works], (), tensors, self._completer)

    def _completes(self, result: Any, calls: Sequence[Callable[[], object]]) -> Prepared:
        """Prepare what cannot go on beside the caller, whatever the options say."""

        def complete() -> Any:
            with self._entered:
                for call in calls:
                    call()
            return Done(result)

        return complete

    def _refused(self, what: str, error: BaseException) -> None:
        """Have a call that could not be prepared take its place among the others; see `Engine`."""
        with self._entered:  # behind the call that another thread is inside
            self._engine.order.refused(
                what, error, self._engine.order.count()
            )  # nothing of it was begun

    def _pairwise(
        self,
        what: str,
        sends: Sequence[tuple[Tensor, int]],
        recvs: Sequence[tuple[Tensor, int]],
        root: int | None = None,
    ) -> Call:
        """Return a call of all ranks in which every array goes straight where it belongs."""
        self._engine.life.require_usable(what)
        found = batch.exchange(self._comm._transfers.place, sends, recvs)

        def call(asynchronous: bool, timeout: float | None) -> Any:
            with self._engine.order.begins(what):
                return self._comm._together(what, found, root, timeout, asynchronous)

        return call

    def _timeout(self, opts: Any) -> float | None:
        """Return the seconds of a call; None: those of the communicator."""
        asked = None if opts is None else opts.timeout
        if asked is not None and asked.total_seconds() > 0:
            return seconds(asked)
        return self._seconds


def _unserved(*call: Any) -> None:
    """Serve no call, as `Dispatcher.pointers` says that."""


def _forked() -> None:
    """Free a child of locks whose owner, a thread inside a call, exists in the parent only.

    Its calls then reach the engine, which refuses them.
    """
    for group in _GROUPS:
        group._entered = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def only(tensors: Any, what: str) -> Tensor:
    """Return the one tensor of a list; torch's lists are of one tensor for each device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"{what}: got {len(tensors)} tensors, want one: a rank has one device")
    return tensors[0]
