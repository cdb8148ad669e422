"""What torch holds of a call that has begun."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from pycoll.errors import PycollError
from pycoll.interop.torch_dynamo import run_as_it_is
from pycoll.interop.torch_error import Failure, translated
from pycoll.interop.torch_profile import profiling, recorded

#: How many works that are over are kept for a C++ that may still wait for them.
_KEPT = 1000


class Part(Protocol):
    """One call of a Communicator beside its caller; its own Work is one."""

    def wait(self, timeout: float | None = None) -> Any:
        """Return once it is done; raise what went wrong, or CollectiveTimeout after seconds."""

    def done(self) -> bool:
        """Tell whether `wait` would return or raise at once."""

    def exception(self) -> PycollError | None:
        """Return what went wrong, or None; waits."""


class Completes(Protocol):
    """Gives the futures of works their values; see `torch_future`."""

    def complete(self, work: Pending) -> None:
        """Fulfil the future of a work, at once if that is over, else beside the caller."""


@run_as_it_is
class Done(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """A call that was over when it returned. Blocking calls share one, which has no tensors."""

    def __init__(self, tensors: Any = ()) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """Tell that it is over."""
        return True

    def is_success(self) -> bool:
        """Tell that nothing went wrong: else the call itself would have raised it."""
        return True

    def exception(self) -> None:
        """Tell that nothing went wrong."""

    def result(self) -> Any:
        """Return the tensors with the results."""
        return list(self._tensors)

    def get_future(self) -> Any:
        """Return a future that is done; its value is `result`."""
        future: Any = torch.futures.Future()
        future.set_result(self.result())
        return future


class _Forgotten:
    """Works that Python let go before anybody waited for them.

    A work has two halves, and what C++ is given is its own one: DDP's reducer is given that of the
    call by which ranks with uneven inputs find each other, and waits for it in the next backward.
    Without Python's half it would wait for ever, so that is kept: until it has been waited for, or
    as long as it is one of the latest that are over, without their tensors.
    """

    def __init__(self) -> None:
        self.begun: deque[Pending] = deque()  #: as far as anybody has looked
        self._over: deque[Pending] = deque(maxlen=_KEPT)
        #: Keeps a work. It is all that a destructor may do, which runs anywhere: inside a call too.
        self.keep = self.begun.append

    def sort(self) -> None:
        """Look whether some of those that were kept are over; a few at each call do."""
        for _ in range(min(8, len(self.begun))):
            try:
                work = self.begun.popleft()
            except IndexError:  # another thread has looked at it
                return
            if not work.is_completed():
                self.begun.append(work)
            elif not work.looked_after:
                work.tensors = ()
                self._over.append(work)


forgotten = _Forgotten()


@run_as_it_is
class Pending(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """Calls beside their caller, which are one to torch.

    Args:
        parts: Begun already.
        arrive: What is to be done once all are over, before the results can be looked at.
        tensors: With the results; they and all that travels stay alive until it is over.
        completer: Completes the future, if anybody asks for one.
        source: The rank that sends, of a receive.
    """

    name = "call"  #: for torch's profiler, if one ran when it began
    looked_after = True  #: somebody waited, or will be told by a future; or there is nothing yet

    def __init__(
        self,
        parts: Sequence[Part],
        arrive: Sequence[Callable[[], object]],
        tensors: Any,
        completer: Completes,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._parts, self._arrive = parts, arrive
        self.tensors = tensors  #: with the results
        self._completer = completer
        self._source = source
        self._future: Any = None
        self._error: PycollError | None = None
        self._lock = threading.RLock()  # a signal handler may wait, too
        self.looked_after = False

    def __del__(self, keep: Callable[[Pending], None] = forgotten.keep) -> None:
        """Stay alive if nobody waited: C++ may."""
        if not self.looked_after:
            keep(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once it is over; raise what went wrong.

        Args:
            timeout: How long to wait at most; None or 0: as long as the call may take. When it
                passes, CollectiveTimeout is raised and the call goes on.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        try:
            if self._parts and profiling():
                with recorded(f"{self.name} wait"):
                    self._wait(seconds)
            else:
                self._wait(seconds)
        except PycollError as error:
            self.looked_after = all(part.done() for part in self._parts)
            raise translated(error) from error
        if self._error is not None:
            raise self._error
        # On a GPU a wait only orders the current stream: nothing here may wait for more.
        self._take_in()
        self.looked_after = True
        return True

    def _wait(self, seconds: float) -> None:
        for part in self._parts:
            part.wait(seconds if seconds > 0 else None)

    def synchronize(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether it is over, well or not."""
        if not all(part.done() for part in self._parts):
            return False
        self._settle()
        return True

    def is_success(self) -> bool:
        """Tell whether it is over and nothing went wrong."""
        return self.is_completed() and self._error is None

    def exception(self) -> PycollError | None:
        """Return what went wrong, or None: nothing, or it is not over."""
        return self._error if self.is_completed() else None

    def failure(self) -> PycollError | None:
        """Return what went wrong, or None; waits until it is over."""
        self._settle()
        self.looked_after = True
        return self._error

    def result(self) -> Any:
        """Return the tensors with the results, once it is over."""
        self.wait()
        return self.tensors

    def source_rank(self) -> int:
        """Return the rank that sends, of a receive; else -1."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future; its value is `result`."""
        with self._lock:
            self.looked_after = True
            if self._future is None:
                self._future = torch.futures.Future()
                self._completer.complete(self)
            return self._future

    def fulfil(self) -> None:
        """Wait, and give the future its value or its exception."""
        try:
            for part in self._parts:
                part.exception()
            self._settle()
            error: Exception | None = self._error
        except Exception as failure:  # copying results out may fail in any way that torch knows
            error = failure
        if error is None:
            self._future.set_result(self.tensors)
        else:
            self._future._set_unwrap_func(Failure.unwrap)
            self._future.set_result(Failure(error))

    def _settle(self) -> None:
        """Take the results in, once: everything is over."""
        if not self._parts:
            return
        with self._lock:
            errors = [error for part in self._parts if (error := part.exception()) is not None]
            if errors:
                self._error = self._error or translated(errors[0])
                self._parts = self._arrive = ()
            self._take_in()

    def _take_in(self) -> None:
        """Do once what is to be done when all went well."""
        with self._lock:
            for arrive in self._arrive:
                arrive()
            self._parts = self._arrive = ()


class Whole:
    """A work as a part of another one, which torch made of several."""

    def __init__(self, work: Pending) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> None:
        """Do what `Pending.wait` does, with seconds."""
        self._work.wait(None if timeout is None else timedelta(seconds=timeout))

    def done(self) -> bool:
        """Tell whether it is over."""
        return self._work.is_completed()

    def exception(self) -> PycollError | None:
        """Return what went wrong, or None; waits until it is over."""
        return self._work.failure()
