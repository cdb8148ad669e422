"""Link: one socket of the star, without blocking."""

from __future__ import annotations

import selectors
import socket

from pycoll.bootstrap.framing import Decoder


class Link:
    """A socket of the star with what is still to be sent on it."""

    def __init__(self, peer: int, sock: socket.socket, limit: int) -> None:
        self.peer = peer
        self.sock = sock
        self.decoder = Decoder(limit)
        self.unsent = bytearray()
        self.events = selectors.EVENT_READ
        self.open = True
        sock.setblocking(False)
        _keep_alive(sock)

    def send(self) -> None:
        """Send what the kernel takes; a dead peer is noticed when reading."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(memoryview(self.unsent)[:262144])]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()

    def receive(self) -> bytes:
        """Return what came; empty at the end. BlockingIOError if there is nothing."""
        try:
            return self.sock.recv(262144)
        except BlockingIOError:
            raise
        except OSError:
            return b""


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice within half a minute that a peer's whole machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25000)
