"""The two ends of a connection that one rank makes to another, up to where somebody takes it over.

After the handshake the listening side says one byte: the socket is taken, or not. The other side
sends nothing before it has read that byte, and reads nothing after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket

from pycoll.bootstrap.handshake import Handshake, Preface, Side
from pycoll.bootstrap.seal import Seals
from pycoll.errors import BootstrapError

TAKEN = b"\x01"
NOT_TAKEN = b"\x02"

#: How long the network may take to connect; then the other side gets a turn.
CONNECT_SECONDS = 3.0
#: Between two attempts, at first and at most.
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.02, 1.0


def avoid_bbr(sock: socket.socket) -> None:
    """Give a socket Reno where the system's congestion control is BBR.

    BBR paces a stream by the bandwidth that it believes in, and collectives, which send in bursts
    and then wait for each other, have it believe a hundredth of what there is. Reno is in every
    kernel, and every user may choose it. A socket that BBR has once had stays paced, by a timer
    for each burst, whatever it is given later: so this comes before `connect`, and before a
    peer hears of the listener, whose choice those that it accepts have from their beginning.
    """
    with contextlib.suppress(OSError):  # a kernel that has no choice
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        if name.startswith(b"bbr"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class OutgoingConnection:
    """Connects to one peer, again and again until somebody loses patience."""

    def __init__(self, peer: int, address: tuple[str, int], secret: bytes) -> None:
        self.peer = peer
        self.sock: socket.socket | None = None  #: of the attempt under way
        self.accepted = False
        self._address, self._secret = address, secret
        self._talk: Handshake | None = None
        self._connected = False
        self._until = self._next = 0.0
        self._deadline = 0.0
        self._pause = PAUSE_SECONDS

    def due(self) -> float:
        """Return when `overdue` or `ready` will be true."""
        return self._until if self.sock else self._next

    def overdue(self, now: float) -> bool:
        """Tell whether the attempt under way has taken too long."""
        return self._until <= now

    def ready(self, now: float) -> bool:
        """Tell whether it is time for another attempt."""
        return self._next <= now

    def postpone(self, now: float) -> None:
        """Wait before the next attempt, longer each time."""
        self._next = now + self._pause
        self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)

    def begin(
        self, own: Preface, now: float, deadline: float, seconds: float = CONNECT_SECONDS
    ) -> socket.socket:
        """Begin to connect; return the socket of the attempt.

        Args:
            own: This rank's preface.
            now: By `time.monotonic`.
            deadline: Until when whoever has been reached may be busy.
            seconds: How long the network may take.

        Raises:
            OSError: There is no way, nobody listens there, or this process has no more sockets.
        """
        host, port = self._address
        self._talk = Handshake(Side.CONNECTING, self._secret, own)
        self._connected = self.accepted = False
        self._until, self._deadline = min(now + seconds, deadline), deadline
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            avoid_bbr(sock)
            sock.setblocking(False)
            sock.connect((host, port))
        except BlockingIOError:  # it is under way
            pass
        except OSError:
            sock.close()
            raise
        self.sock = sock
        return sock

    def connected(self) -> bool:
        """Tell whether the attempt has reached somebody."""
        return self._connected

    def served_by(self) -> Preface:
        """Return who answered; call it when `progress` has said that it is over."""
        assert self._talk is not None
        assert self._talk.peer is not None
        if self._talk.peer.rank != self.peer:
            raise BootstrapError(f"rank {self._talk.peer.rank} listens there")
        return self._talk.peer

    def seals(self) -> Seals:
        """Return the seals of what follows, once it is over."""
        assert self._talk is not None
        return self._talk.seals()

    def progress(self, events: int) -> bool:
        """Do what can be done without waiting; True once the other side has decided.

        Raises:
            BootstrapError: Who listens there is not a process of this job.
            OSError: There is no way, or the other side hung up, which does not tell who it is.
        """
        assert self.sock is not None
        assert self._talk is not None
        if not self._connected:
            if code := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
            if not events & selectors.EVENT_WRITE:
                return False
            self._connected = True
            # Who is connected may be busy: giving up now would leave a half of a link there.
            self._until = self._deadline
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.send(self._talk.own.encode())
        if events & selectors.EVENT_READ:
            while wanted := self._talk.wants():
                if not (data := self._receive(wanted)):
                    return False
                if answer := self._talk.feed(data):
                    self.sock.send(answer)
            if verdict := self._receive(1):
                self.accepted = verdict == TAKEN
                return True
        return False

    def _receive(self, count: int) -> bytes:
        """Return what has come; empty if nothing has."""
        assert self.sock is not None
        try:
            data = self.sock.recv(count)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        return data


class IncomingConnection:
    """A connection that somebody made here, who is a stranger until the handshake is done."""

    def __init__(self, sock: socket.socket, secret: bytes, own: Preface, until: float) -> None:
        self.sock = sock
        self.until = until
        self._talk = Handshake(Side.LISTENING, secret, own)
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def greet(self) -> bool:
        """Send the preface; False if that fails."""
        return self._send(self._talk.own.encode())

    def hear(self) -> bool:
        """Take what has come; True once the handshake is done.

        Raises:
            BootstrapError: It is nobody of these ranks.
            OSError: It is gone.
        """
        while wanted := self._talk.wants():
            try:
                data = self.sock.recv(wanted)
            except BlockingIOError:
                return False
            if not data:
                raise BootstrapError("it hung up")
            if (answer := self._talk.feed(data)) and not self._send(answer):
                raise BootstrapError("it does not read")
        return True

    def caller(self) -> Preface:
        """Return who it is, after the handshake."""
        assert self._talk.peer is not None
        return self._talk.peer

    def seals(self) -> Seals:
        """Return the seals of what follows, after the handshake."""
        return self._talk.seals()

    def accept(self) -> bool:
        """Say that the connection is taken; False if that fails."""
        return self._send(TAKEN)

    def refuse(self) -> None:
        """Say that another connection to the same rank stays."""
        self._send(NOT_TAKEN)

    def _send(self, data: bytes) -> bool:
        """Send a few bytes, for which a fresh connection always has room."""
        with contextlib.suppress(OSError):
            return self.sock.send(data) == len(data)
        return False
