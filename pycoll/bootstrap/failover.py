"""Failover: who carries the control plane when the process that did is gone.

The lowest rank that lives takes its place. Every rank but 0 listens from the start; when its
connection to the router's rank ends, it tries the ranks in order until one takes it in, or its own
turn has come. A rank is passed by for good if nobody listens at its port, if whoever listens there
is somebody else, or if its machine does not answer. Whoever hangs up is called again: it may
live, and what ended may be the patience with this rank. But a stranger that has the port of a rank
that died hangs up for ever, so that lasts no longer than the silence of a machine. What the router
knew it is told anew by those who come (decision 15).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from pycoll import log
from pycoll.bootstrap.connection import IncomingConnection, OutgoingConnection
from pycoll.bootstrap.control_socket import UNREACHABLE, keep_alive, silence_seconds
from pycoll.bootstrap.handshake import Preface, check
from pycoll.bootstrap.rendezvous import Star
from pycoll.bootstrap.route import is_loopback
from pycoll.bootstrap.seal import Seals
from pycoll.errors import BootstrapError

STRANGER_SECONDS = 5.0  #: how long a connection may take to prove itself
MOST_STRANGERS = 64  #: of those at a time, beside one for each rank
DEAF_SECONDS = 0.1  #: how long a rank without descriptors for those who come does not listen
#: This process, or its machine, has no room for a connection at the moment.
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

#: A rank, the connection to it, and what seals it.
Taken = Callable[[int, socket.socket, Seals], None]


class Failover:
    """One rank's part in it; all of it runs on the control thread.

    Args:
        star: Who is there, and where this rank listens, if it does.
        selector: What the control thread sleeps in.
        timeout: Seconds that the job allows a wait for other ranks.
        came: Called with a rank that has come here to be served.
        reached: Called with the rank that serves this one from now on.
        preside: Called when it is this rank's turn to serve.
        ended: Called with a rank that is passed by, since nobody listens at its port any more.
        unreachable: Called with a rank that is passed by, since its machine does not answer.
        hung_up: Called with a rank that is passed by, since it has hung up for too long, or
            somebody else answers at its port.
    """

    def __init__(
        self,
        star: Star,
        selector: selectors.BaseSelector,
        timeout: float,
        came: Taken,
        reached: Taken,
        preside: Callable[[], None],
        ended: Callable[[int], None],
        unreachable: Callable[[int], None],
        hung_up: Callable[[int], None],
    ) -> None:
        self._star, self._selector, self._timeout = star, selector, timeout
        self._came, self._reached, self._preside = came, reached, preside
        self._ended, self._unreachable, self._gone = ended, unreachable, hung_up
        self._listener = star.listener
        self._secret = hmac.digest(star.secret, b"failover", hashlib.sha256)
        self._visits: dict[int, IncomingConnection] = {}  # file descriptor → stranger, oldest first
        self._caller: OutgoingConnection | None = None
        self._patient_until = math.inf  # with who hangs up; counted from the first time
        self._deaf_until = math.inf  # without descriptors for those who come
        self.out: set[int] = set()  #: ranks that cannot serve any more
        if self._listener:
            self._listener.setblocking(False)
            selector.register(self._listener, selectors.EVENT_READ, self)

    @property
    def seeking(self) -> bool:
        """Whether this rank is served by nobody at this moment."""
        return self._caller is not None

    def exclude(self, rank: int) -> None:
        """Never turn to this rank, which is gone."""
        self.out.add(rank)
        if self._caller and self._caller.peer == rank:
            self.seek()

    def seek(self) -> None:
        """Turn to the next rank; it may be this one."""
        self._hang_up()
        self._caller = None
        while self._caller is None:
            rank = next(rank for rank in range(self._star.size) if rank not in self.out)
            if rank == self._star.rank:
                log.info("control", "rank %d: carries the control plane from now on", rank)
                self._preside()
                return
            self._caller, self._patient_until = self._caller_of(rank), math.inf
            self._begin(self._caller)

    def _address_of(self, rank: int) -> tuple[str, int]:
        member = self._star.members[rank]
        host = member.address
        if is_loopback(host) and member.host != self._star.members[self._star.rank].host:
            host = self._star.members[0].address  # it met rank 0 on rank 0's own machine
        return host, member.port

    def _caller_of(self, rank: int) -> OutgoingConnection:
        return OutgoingConnection(rank, self._address_of(rank), self._secret)

    def probe(self, rank: int) -> socket.socket | None:
        """Begin to connect to where a rank listens; its machine refuses that if it has ended."""
        host, port = self._address_of(rank)
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        error = sock.connect_ex((host, port)) if port else errno.EADDRNOTAVAIL
        if error in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
            return sock
        sock.close()
        return None

    def due(self) -> float:
        """Return when `expire` has something to do; infinity if nothing is under way."""
        soonest = min([self._deaf_until, *(visit.until for visit in self._visits.values())])
        return min(soonest, self._caller.due()) if self._caller else soonest

    def expire(self, now: float) -> None:
        """Give up what has taken too long, and listen again where that was given up."""
        if self._listener and self._deaf_until <= now:
            self._deaf_until = math.inf
            self._selector.register(self._listener, selectors.EVENT_READ, self)
        for visit in [visit for visit in self._visits.values() if visit.until <= now]:
            self._drop(visit)
        if self._caller and self._caller.due() <= now:
            if self._caller.sock:
                self._fail(self._caller, OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            else:
                self._begin(self._caller)
            self._go_on()

    def handle(self, sock: Any, events: int) -> None:
        """Serve a socket of this object that is ready."""
        if sock is self._listener:
            self._accept()
        elif self._caller and sock is self._caller.sock:
            self._call(self._caller, events)
        elif visit := self._visits.get(sock.fileno()):
            self._hear(visit)

    def close(self) -> None:
        """Close every socket; the selector may be closed already."""
        if self._listener:
            self._listener.close()
        if self._caller and self._caller.sock:
            self._caller.sock.close()
        for visit in self._visits.values():
            visit.sock.close()

    def _begin(self, caller: OutgoingConnection) -> None:
        """Begin an attempt to reach the rank whose turn it is."""
        own = Preface.make(self._star.rank, self._star.size)
        try:
            sock = caller.begin(own, time.monotonic(), math.inf, silence_seconds(self._timeout))
        except OSError as error:
            self._fail(caller, error)
            return
        keep_alive(sock, self._timeout)  # its machine may vanish once it is reached
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def _call(self, caller: OutgoingConnection, events: int) -> None:
        assert caller.sock is not None
        try:
            ended = caller.progress(events)
            if caller.connected():
                self._selector.modify(caller.sock, selectors.EVENT_READ, self)
            if not ended:
                return
            check(caller.served_by(), self._star.rank, self._star.size)
        except (BootstrapError, OSError) as error:
            self._fail(caller, error)
            self._go_on()
            return
        sock, caller.sock = caller.sock, None
        self._selector.unregister(sock)
        self._caller = None
        log.info(
            "control", "rank %d: rank %d carries the control plane", self._star.rank, caller.peer
        )
        self._reached(caller.peer, sock, caller.seals())

    def _fail(self, caller: OutgoingConnection, error: BootstrapError | OSError) -> None:
        """End an attempt; pass the rank by, which leaves no caller, or call it again later."""
        self._hang_up()
        log.info(
            "control",
            "rank %d: rank %d does not take it into the control plane: %s",
            *(self._star.rank, caller.peer, error),
        )
        now = time.monotonic()
        if isinstance(error, BootstrapError):
            # Somebody else answers there: a port that was free again, or another machine, or one
            # in between, that has this address here. Only its own machine proves a rank dead.
            self._pass_by(caller, self._gone)
        elif error.errno == errno.ECONNREFUSED:
            self._pass_by(caller, self._ended)
        elif error.errno in SHORT:
            caller.postpone(now)
        elif error.errno != errno.ECONNRESET and (
            error.errno in UNREACHABLE or not caller.connected()
        ):
            self._pass_by(caller, self._unreachable)
        else:  # it hung up
            self._patient_until = min(self._patient_until, now + silence_seconds(self._timeout))
            if now < self._patient_until:
                caller.postpone(now)
            else:
                self._pass_by(caller, self._gone)

    def _pass_by(self, caller: OutgoingConnection, told: Callable[[int], None]) -> None:
        self._caller = None
        self.out.add(caller.peer)
        told(caller.peer)

    def _go_on(self) -> None:
        """Turn to the next rank if an attempt has passed one by."""
        if self._caller is None:
            self.seek()

    def _hang_up(self) -> None:
        if self._caller and self._caller.sock:
            self._selector.unregister(self._caller.sock)
            self._caller.sock.close()
            self._caller.sock = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # it was gone before we looked
            if error.errno in SHORT:
                # It is still there, and the thread would look again at once, for ever.
                self._selector.unregister(self._listener)
                self._deaf_until = time.monotonic() + DEAF_SECONDS
            return
        own = Preface.make(self._star.rank, self._star.size)
        visit = IncomingConnection(sock, self._secret, own, time.monotonic() + STRANGER_SECONDS)
        self._visits[sock.fileno()] = visit
        self._selector.register(sock, selectors.EVENT_READ, self)
        if len(self._visits) > MOST_STRANGERS + self._star.size:
            self._drop(next(iter(self._visits.values())))  # the oldest had its chance
        if not visit.greet():
            self._drop(visit)

    def _hear(self, visit: IncomingConnection) -> None:
        try:
            if not visit.hear():
                return
            peer = visit.caller()
            check(peer, self._star.rank, self._star.size)
        except (BootstrapError, OSError):
            self._drop(visit)
            return
        if peer.rank == self._star.rank or not visit.accept():
            self._drop(visit)
            return
        self._selector.unregister(visit.sock)
        del self._visits[visit.sock.fileno()]
        self._came(peer.rank, visit.sock, visit.seals())

    def _drop(self, visit: IncomingConnection) -> None:
        if self._visits.pop(visit.sock.fileno(), None):
            with contextlib.suppress(KeyError):
                self._selector.unregister(visit.sock)
        visit.sock.close()
