"""Connector: the thread that makes connections to remote ranks, and answers theirs.

Whoever connects must prove the secret of these ranks before anything else is read. Either side
may begin; of two at once the lower rank's stays: only it refuses, while its own attempt lives.

The thread also handles events that nobody else would see while no call runs: RDMA connections that
are to be made, that have failed or that come back.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pycoll import log
from pycoll.bootstrap.connection import IncomingConnection, OutgoingConnection
from pycoll.bootstrap.handshake import Preface, check
from pycoll.errors import BootstrapError, PycollError

#: Sockets to each remote peer.
SOCKETS = 1
#: Connections that have not proved anything yet, beside one for each remote peer.
MOST_STRANGERS = 64
#: How long such a connection may take.
STRANGER_SECONDS = 5.0
#: Why a peer refuses, mostly: the one that it has begun itself is on the way here.
_OTHERWISE = "it has taken another connection"
#: How long to be deaf when no more sockets can be had.
DEAF_SECONDS = 0.1


class EventSource(NamedTuple):
    """What the thread sees to besides."""

    fd: int  #: readable when there is something to do
    attend: Callable[[], None]  #: does it; PycollError: it can never be done again


class Connector:
    """Answers and calls, until every peer that is wanted has its sockets.

    Args:
        listener: Where the peers connect; closed at the end.
        rank: This rank.
        size: Number of ranks.
        secret: What only these ranks know.
        addresses: Where each remote peer listens.
        adopt: Takes over an authenticated socket to a peer.
        attention: What else there is to see to; its descriptor stays open until `close`.
    """

    def __init__(
        self,
        listener: socket.socket,
        rank: int,
        size: int,
        secret: bytes,
        addresses: dict[int, tuple[str, int]],
        adopt: Callable[[int, socket.socket], None],
        attention: EventSource | None = None,
    ) -> None:
        self._listener, self._rank, self._size, self._secret = listener, rank, size, secret
        self._addresses, self._adopt = addresses, adopt
        self._moved = threading.Condition()  # guards the next two
        self._wanted: dict[int, float] = {}  # peer → until when
        self._sockets = dict.fromkeys(addresses, 0)
        self._problems: dict[int, str] = {}
        self._callers: dict[int, OutgoingConnection] = {}
        self._visits: dict[int, IncomingConnection] = {}  # file descriptor → stranger, oldest first
        self._deaf_until = 0.0
        self._closing = False
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        if attention:
            self._selector.register(attention.fd, selectors.EVENT_READ, attention)
        self._thread = threading.Thread(target=self._run, name="pycoll-links", daemon=True)
        self._thread.start()

    # For any thread.

    def want(self, peers: set[int], deadline: float) -> None:
        """Have connections to these peers made."""
        with self._moved:
            self._wanted.update(dict.fromkeys(peers, deadline))
        self._wake()

    def wait(self, peers: set[int], seconds: float) -> set[int]:
        """Wait at most so long; return the peers that are not connected yet."""
        with self._moved:
            self._moved.wait_for(lambda: not self._missing(peers), seconds)
            return self._missing(peers)

    def problem(self, peer: int) -> str:
        """Return why the last attempt to connect to a peer failed; empty if none has."""
        return self._problems.get(peer, "")

    def close(self) -> None:
        """End the thread; the sockets that were adopted stay open."""
        self._closing = True
        self._wake()
        self._thread.join()

    def current(self) -> bool:
        """Tell whether the caller is the thread that answers and calls."""
        return threading.current_thread() is self._thread

    def forked(self) -> None:
        """In the child of a fork: close everything; the epoll itself is the parent's."""
        with contextlib.suppress(OSError):
            self._selector.close()
        self._close_all()

    def _missing(self, peers: set[int]) -> set[int]:
        return {peer for peer in peers if self._sockets[peer] < SOCKETS}

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: it has ended
            self._waker.send(b"\0")

    # What follows runs on the thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            self._selector.close()
            self._close_all()

    def _turn(self) -> None:
        now = time.monotonic()
        due = [c.due() for c in self._callers.values()] + [v.until for v in self._visits.values()]
        if self._deaf_until:
            due.append(self._deaf_until)
        pause = max(0.0, min(due) - now) if due else None
        for key, events in self._selector.select(pause):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif isinstance(key.data, EventSource):
                self._attend(key.data)
            elif isinstance(key.data, OutgoingConnection):
                self._progress(key.data, events)
            else:
                self._hear(key.data)
        now = time.monotonic()
        for visit in [v for v in self._visits.values() if v.until <= now]:
            self._drop(visit)
        if self._deaf_until and self._deaf_until <= now:
            self._deaf_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._call(now)

    def _attend(self, attention: EventSource) -> None:
        try:
            attention.attend()
        except PycollError:
            # The calls that need it fail by themselves; this thread must not spin.
            self._selector.unregister(attention.fd)

    # Calling

    def _call(self, now: float) -> None:
        with self._moved:
            wanted = {p: t for p, t in self._wanted.items() if t > now and self._missing({p})}
            self._wanted = wanted
        for peer in self._callers.keys() - wanted.keys():
            self._end(self._callers.pop(peer))
        for peer, until in wanted.items():
            if peer not in self._callers:
                self._callers[peer] = OutgoingConnection(peer, self._addresses[peer], self._secret)
            caller = self._callers[peer]
            if caller.sock and caller.overdue(now):
                self._retry(caller, "no answer in time")
            if caller.sock is None and caller.ready(now):
                try:
                    sock = caller.begin(Preface.make(self._rank, self._size), now, until)
                except OSError as error:
                    self._retry(caller, error.strerror or str(error))
                    continue
                self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, caller)

    def _progress(self, caller: OutgoingConnection, events: int) -> None:
        if caller.sock is None:
            return
        try:
            ended = caller.progress(events)
            if caller.connected():
                self._selector.modify(caller.sock, selectors.EVENT_READ, caller)
            if not ended:
                return
            check(caller.served_by(), self._rank, self._size)
        except (BootstrapError, OSError) as error:
            self._retry(caller, str(getattr(error, "strerror", None) or error))
            return
        if caller.accepted:
            sock, caller.sock = caller.sock, None
            self._selector.unregister(sock)
            self._give(caller.peer, sock)
        else:
            # What went wrong before tells more.
            self._retry(caller, self.problem(caller.peer) or _OTHERWISE)

    def _retry(self, caller: OutgoingConnection, problem: str) -> None:
        say = log.debug if problem == _OTHERWISE else log.info
        say("net", "rank %d: no connection to rank %d: %s", self._rank, caller.peer, problem)
        self._problems[caller.peer] = problem
        self._end(caller)
        caller.postpone(time.monotonic())

    def _end(self, caller: OutgoingConnection) -> None:
        if caller.sock:
            self._selector.unregister(caller.sock)
            caller.sock.close()
            caller.sock = None

    # Answering

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # The connection stays in the queue, and so the listener readable.
                self._selector.unregister(self._listener)
                self._deaf_until = time.monotonic() + DEAF_SECONDS
            return
        own = Preface.make(self._rank, self._size)
        visit = IncomingConnection(sock, self._secret, own, time.monotonic() + STRANGER_SECONDS)
        self._visits[sock.fileno()] = visit
        self._selector.register(sock, selectors.EVENT_READ, visit)
        if len(self._visits) > MOST_STRANGERS + len(self._addresses):
            self._drop(next(iter(self._visits.values())))  # the oldest had its chance
        if not visit.greet():
            self._drop(visit)

    def _hear(self, visit: IncomingConnection) -> None:
        if visit.sock.fileno() not in self._visits:  # dropped earlier in this round
            return
        try:
            if not visit.hear():
                return
            peer = visit.caller()
            check(peer, self._rank, self._size)
        except (BootstrapError, OSError):
            self._drop(visit)
            return
        if peer.rank not in self._addresses:
            self._drop(visit)
            return
        with self._moved:
            full = not self._missing({peer.rank})
        mine = self._callers.get(peer.rank)
        calling = mine is not None and mine.sock is not None
        if full or (calling and self._rank < peer.rank):
            visit.refuse()
            self._drop(visit)
        elif visit.accept():
            self._selector.unregister(visit.sock)
            del self._visits[visit.sock.fileno()]
            self._give(peer.rank, visit.sock)
        else:
            self._drop(visit)

    def _drop(self, visit: IncomingConnection) -> None:
        if self._visits.pop(visit.sock.fileno(), None):
            self._selector.unregister(visit.sock)
        visit.sock.close()

    def _give(self, peer: int, sock: socket.socket) -> None:
        """Hand a socket to the engine, and say so to who waits."""
        try:
            self._adopt(peer, sock)
        except (OSError, PycollError) as error:
            self._problems[peer] = str(error)
            sock.close()
            return
        log.debug("net", "rank %d: connected to rank %d", self._rank, peer)
        with self._moved:
            self._sockets[peer] += 1
            self._moved.notify_all()

    def _close_all(self) -> None:
        self._listener.close()
        for caller in self._callers.values():
            if caller.sock:
                caller.sock.close()
        for visit in self._visits.values():
            visit.sock.close()
        self._waker.close()
        self._woken.close()
