"""Control: this rank's end of the control plane, which lasts as long as the job.

It carries deaths, aborts and small exchanges over one connection from every rank to rank 0. Its
thread sleeps until something happens: an idle control plane costs nothing.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from pycoll.bootstrap.framing import MAX_BLOB, MAX_KEY, Frame, Kind, encode, unpack_blobs
from pycoll.bootstrap.hub import CALLS, SECONDS
from pycoll.bootstrap.reactor import CLOSED, EXITED, Reactor
from pycoll.bootstrap.rendezvous import GRACE_SECONDS, Star
from pycoll.errors import (
    BootstrapError,
    BrokenError,
    ClosedError,
    CollectiveTimeout,
    PeerLostError,
    UsageError,
)

MAX_TEXT = 16384  #: characters of an abort's text

OnLost = Callable[[int, str], None]
OnAbort = Callable[[int, str, str], None]


class _Waiter:
    """The calling thread's side of one exchange."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.blobs: list[bytes] = []
        self.error: Exception | None = None


class Control:
    """One per process and job; usable from any thread of the process that made it."""

    def __init__(self, star: Star) -> None:
        self.rank = star.rank
        self.size = star.size
        self.members = star.members
        self._pid = os.getpid()
        self._forked = False
        self._closed = False
        self._lock = threading.Lock()
        self._waiters: dict[str, _Waiter] = {}
        self._lost: dict[int, str] = {}
        self._calls: dict[int, int] = {}
        self._broken: Exception | None = None
        self._untold: deque[Frame] = deque()
        self._callbacks: tuple[OnLost, OnAbort] | None = None
        self._reactor: Reactor | None = None
        if star.size > 1:
            _live.add(self)
            self._reactor = Reactor(star, self._deliver, self._tell, self._end)

    def attach(self, on_lost: OnLost, on_abort: OnAbort) -> None:
        """Name the callbacks; what happened before is told now. All on the control thread."""
        self._check_usable("attach")
        if self._callbacks:
            raise UsageError("attach: the control plane has its callbacks already")
        self._callbacks = on_lost, on_abort
        if self._reactor:
            self._reactor.post()

    def abort(self, kind: str, text: str) -> None:
        """Tell every other rank, once, that this rank gives up, and why."""
        self._check_usable("abort")
        self._post(Frame(Kind.ABORT, self.rank, kind, text[:MAX_TEXT].encode()))

    def exchange(self, key: str, blob: bytes, timeout: float) -> list[bytes]:
        """Give every rank's blob to every rank, in rank order.

        Args:
            key: Names this exchange on all ranks; at most 256 bytes.
            blob: This rank's part; at most 1 MiB.
            timeout: Seconds until the exchange fails on every rank that came.

        Raises:
            CollectiveTimeout: Ranks did not come in time; the message names them.
            PeerLostError: A rank is gone.
            BrokenError: A rank called `abort`.
        """
        self._check_usable("exchange")
        if len(blob) > MAX_BLOB:
            raise UsageError(f"exchange {key!r}: blob has {len(blob)} bytes, at most {MAX_BLOB}")
        if not 0 <= timeout <= 86400:
            raise UsageError(f"exchange {key!r}: timeout is {timeout}, want 0 to 86400 seconds")
        if self._reactor is None:
            return [bytes(blob)]
        waiter = _Waiter()
        with self._lock:
            if self._broken:
                raise self._broken
            if key in self._waiters:
                raise UsageError(f"exchange {key!r} is already under way in this process")
            self._waiters[key] = waiter
        try:
            self._post(Frame(Kind.CONTRIBUTE, self.rank, key, SECONDS.pack(timeout) + blob))
            # Rank 0 keeps the time, because it knows who is missing.
            if not waiter.done.wait(timeout + GRACE_SECONDS):
                raise CollectiveTimeout(
                    f"exchange {key!r}: rank {self.rank} waited {timeout:g} s, "
                    "and rank 0 does not answer"
                )
        finally:
            with self._lock:
                del self._waiters[key]
        if waiter.error:
            raise waiter.error
        return waiter.blobs

    def lost(self) -> dict[int, str]:
        """Return the ranks that are gone, each with its reason."""
        with self._lock:
            return dict(self._lost)

    def calls_of(self, rank: int) -> int | None:
        """Return how many calls `rank` had finished when it left in good order.

        It is known before `on_lost` is told. None while the rank is here, and if it died.
        A rank that closed after its n-th call has done its part of the calls 1 to n.
        """
        with self._lock:
            return self._calls.get(rank)

    def close(self, calls: int = 0, *, reason: str = CLOSED) -> None:
        """Take leave of the other ranks and free everything. Closing twice does nothing.

        Args:
            calls: How many calls this rank has finished, for the others' `calls_of`.
            reason: CLOSED, EXITED when the interpreter ends without close(), or a clause that says
                more, such as "failed with ValueError: ..."; what is too long is cut off.
        """
        reason = reason.encode()[:MAX_KEY].decode(errors="ignore")
        with self._lock:
            if self._closed or self._forked:
                return
            self._closed = True
        _live.discard(self)
        if self._reactor:
            self._reactor.stop(Frame(Kind.CLOSED, self.rank, reason, CALLS.pack(calls)))

    def current(self) -> bool:
        """Tell whether the caller is the control thread, which cannot wait for its own end."""
        return self._reactor is not None and self._reactor.current()

    def forget(self) -> None:
        """Run in a forked child: the control plane is the parent's.

        The lock may be held by a thread that does not exist here, so it is replaced.
        """
        self._forked = True
        self._lock = threading.Lock()
        if self._reactor:
            self._reactor.forget()

    def _check_usable(self, what: str) -> None:
        if self._forked:
            raise UsageError(
                f"{what}: this communicator belongs to process {self._pid}, and this is its "
                f"child {os.getpid()}: call pycoll.init() in the process that uses it"
            )
        if self._closed:
            raise ClosedError(f"{what}: rank {self.rank} has closed its control plane")

    def _post(self, frame: Frame) -> None:
        encode(frame)  # a key that is too long is the caller's error, not the thread's
        if self._reactor:
            self._reactor.post(frame)

    # What follows runs on the control thread.

    def _deliver(self, frame: Frame) -> None:
        """Act on a frame that is for this rank."""
        if frame.kind is Kind.GATHERED:
            self._resolve(frame.key, unpack_blobs(frame.body, self.size), None)
        elif frame.kind is Kind.MISSING:
            text = frame.body.decode(errors="replace")
            self._resolve(frame.key, [], CollectiveTimeout(f"exchange {frame.key!r}: {text}"))
        elif frame.kind is Kind.ABORT:
            text = frame.body.decode(errors="replace")
            self._announce(frame)
            self._break(BrokenError(f"rank {frame.rank} gave up ({frame.key}): {text}"))
        elif frame.kind in (Kind.LOST, Kind.CLOSED) and 0 <= frame.rank < self.size:
            self._lose(frame)
        else:
            raise BootstrapError(f"rank 0 sent {frame.kind.name} about rank {frame.rank}")

    def _resolve(self, key: str, blobs: list[bytes], error: Exception | None) -> None:
        with self._lock:
            waiter = self._waiters.get(key)
        if waiter and not waiter.done.is_set():
            waiter.blobs, waiter.error = blobs, error
            waiter.done.set()

    def _lose(self, frame: Frame) -> None:
        if self._reactor:
            self._reactor.suspected(frame.rank)
        with self._lock:
            if frame.rank in self._lost:
                return
            if frame.kind is Kind.CLOSED:
                (self._calls[frame.rank],) = CALLS.unpack(frame.body)
            self._lost[frame.rank] = frame.key
        self._announce(frame)
        who = f"rank {frame.rank} ({self.members[frame.rank]})"
        self._break(PeerLostError(f"{who} is gone: it {frame.key}"))

    def _break(self, error: Exception) -> None:
        """Fail every exchange, those under way and those to come."""
        with self._lock:
            self._broken = self._broken or error
            keys = list(self._waiters)
        for key in keys:
            self._resolve(key, [], error)

    def _announce(self, frame: Frame) -> None:
        """Tell the callbacks first: who learns it from a failing exchange finds it known to all."""
        self._untold.append(frame)
        self._tell()

    def _tell(self) -> None:
        """Call back for what happened, once there are callbacks."""
        while self._untold and self._callbacks and not self._closed:
            frame = self._untold.popleft()
            on_lost, on_abort = self._callbacks
            try:
                if frame.kind is Kind.ABORT:
                    on_abort(frame.rank, frame.key, frame.body.decode(errors="replace"))
                else:
                    on_lost(frame.rank, frame.key)
            except Exception as error:  # the others must still be told
                assert self._reactor is not None
                self._reactor.report(error)

    def _end(self, error: Exception | None) -> None:
        self._break(error or ClosedError(f"rank {self.rank} has closed its control plane"))


#: Control planes that are open in this process.
_live: weakref.WeakSet[Control] = weakref.WeakSet()


def leave_all() -> None:
    """Take leave on behalf of whoever did not: the interpreter is about to end."""
    for control in list(_live):
        control.close(reason=EXITED)


def _forget_all() -> None:
    for control in list(_live):
        control.forget()
    _live.clear()


atexit.register(leave_all)
os.register_at_fork(after_in_child=_forget_all)
