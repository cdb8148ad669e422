"""Link: one socket of the star, without blocking."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import selectors
import socket
import sys
import termios

from pycoll.bootstrap.framing import Decoder

#: Seconds without a sign of life after which a machine counts as gone, if the job allows so many.
SILENCE_SECONDS = 25.0
#: The network between the ends is down: nobody has closed the connection.
UNREACHABLE = frozenset(
    {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)


class Link:
    """A socket of the star with what is still to be sent on it."""

    def __init__(self, peer: int, sock: socket.socket, limit: int, timeout: float) -> None:
        self.peer = peer
        self.sock = sock
        self.decoder = Decoder(limit)
        self.unsent = bytearray()
        self.events = selectors.EVENT_READ
        self.open = True
        self._cut = False  # sending found that the network is down, and says so only once
        sock.setblocking(False)
        keep_alive(sock, timeout)

    def send(self) -> None:
        """Send what the kernel takes; a dead peer is noticed when reading."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(memoryview(self.unsent)[:262144])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._cut = error.errno in UNREACHABLE
            self.unsent = bytearray()

    def finish(self) -> None:
        """Say that nothing more will be sent; the other side then closes, too."""
        with contextlib.suppress(OSError):  # closed already
            self.sock.shutdown(socket.SHUT_WR)

    def arrived(self) -> bool:
        """Tell whether all that was sent, and its end, has reached the other machine."""
        left = fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4))  # unacknowledged bytes
        return not int.from_bytes(left, sys.byteorder)

    def receive(self) -> bytes:
        """Return what came; empty at the end. OSError if there is nothing, or no way."""
        try:
            data = self.sock.recv(262144)
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno in UNREACHABLE:
                raise
            data = b""
        if not data and self._cut:
            raise OSError(errno.ETIMEDOUT, "the network is down")
        return data


def keep_alive(sock: socket.socket, timeout: float) -> None:
    """Have the kernel notice that a peer's machine is gone in half of the job's timeout.

    An outage of two seconds must be survived, so this is never less than three.
    """
    seconds = min(SILENCE_SECONDS, max(timeout / 2, 3.0))
    step = max(1, int(seconds / 5))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2 * step)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
