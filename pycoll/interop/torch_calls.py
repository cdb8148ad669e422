"""How a process group of torch calls its Communicator: at once, or by way of Python's checks."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from pycoll.errors import PycollError, UsageError
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_error import translated
from pycoll.interop.torch_future import Beside, Completer
from pycoll.interop.torch_launch import seconds
from pycoll.interop.torch_meet import Maker
from pycoll.interop.torch_tensor import CODES, Tensor
from pycoll.interop.torch_work import Done, Pending, Whole
from pycoll.runtime import batch

_STRIDED = torch.strided
_GROUPS: weakref.WeakSet[Calls] = weakref.WeakSet()
_Method = TypeVar("_Method", bound=Callable[..., Any])

#: Makes a call, beside the caller or not, with a timeout in seconds or None.
Call = Callable[[bool, float | None], Any]


def torch_errors(method: _Method) -> _Method:
    """Have a method raise pycoll's errors as torch's users expect them."""

    @functools.wraps(method)
    def raising(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except PycollError as error:
            raise translated(error) from error

    return cast(_Method, raising)


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
        self._pointers = self._engine.launcher.pointers
        self._entered = threading.RLock()  #: reentrant: a signal handler may call, and is refused
        self._over = Done()  #: one for all blocking calls: making one costs more than the rest
        self._seconds: float | None = None  #: of a call, if not the communicator's
        self._completer = Completer(f"pycoll futures of {id(self):x}")
        self._beside = Beside()
        self._coalesced: list[Pending] | None = None  #: begun since torch began to coalesce
        _GROUPS.add(self)

    def _at_once(self, number: int, x: Tensor, out: Tensor, op: int, root: int = 0) -> bool:
        """Run a blocking call by a plan that is known; False if it takes Python to make one.

        Args:
            number: Of the collective.
            x: What this rank brings.
            out: Where the result goes; may be ``x``. Its length is looked at, its shape is not.
            op: pycoll's number of the operation.
            root: The rank that has or gets the data.
        """
        dtype = x.dtype
        code = CODES.get(dtype)
        if (
            code is None
            or self._seconds is not None
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
        with self._entered:
            try:
                code = self._pointers(number, start, to, nbytes, room, code, op, root)
                if code:
                    self._engine.finish(code)
            except BaseException as error:
                self._engine.interrupted(error)
                if isinstance(error, PycollError):
                    raise translated(error) from error
                raise
        return code is not None

    def _begin(
        self,
        opts: Any,
        result: Any,
        calls: Sequence[Call],
        arrive: Sequence[Callable[[], object] | None] = (),
    ) -> Any:
        """Make calls that are one to torch, beside the caller unless ``opts`` says otherwise.

        Args:
            opts: torch's options of the collective; None: its defaults.
            result: The tensors with the results.
            calls: In the order that all ranks make them in.
            arrive: What is to be done when all are over.
        """
        timeout = self._timeout(opts)
        asynchronous = opts is None or opts.asyncOp
        after = [step for step in arrive if step is not None]
        with self._entered:
            parts = [call(asynchronous, timeout) for call in calls]
        if asynchronous:
            return self._noted(Pending(parts, after, result, self._completer))
        for step in after:
            step()
        return self._over

    def _noted(self, work: Pending) -> Pending:
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

    def _complete(self, result: Any, calls: Sequence[Callable[[], object]]) -> Any:
        """Do what cannot go on beside the caller, whatever the options say."""
        with self._entered:
            for call in calls:
                call()
        return Done(result)

    def _pairwise(
        self,
        what: str,
        sends: Sequence[tuple[Tensor, int]],
        recvs: Sequence[tuple[Tensor, int]],
        root: int | None = None,
    ) -> Call:
        """Return a call of all ranks in which every array goes straight where it belongs."""
        self._engine.require_usable(what)
        transfers = self._comm._transfers
        found = batch.exchange(transfers.place, sends, recvs)

        def call(asynchronous: bool, timeout: float | None) -> Any:
            return transfers.together(what, found, root, timeout, asynchronous)

        return call

    def _timeout(self, opts: Any) -> float | None:
        """Return the seconds of a call; None: those of the communicator."""
        asked = None if opts is None else opts.timeout
        if asked is not None and asked.total_seconds() > 0:
            return seconds(asked)
        return self._seconds


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
