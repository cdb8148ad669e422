"""Control socket: one of those between rank 0 and the others, without blocking."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import selectors
import socket
import struct
import sys
import termios
import time

from pycoll.bootstrap.framing import Decoder, Frame, sealed
from pycoll.bootstrap.seal import Seals

#: Seconds without a sign of life after which a machine counts as gone, if the job allows so many.
SILENCE_SECONDS = 25.0
#: What a machine may take to acknowledge, so that a pause of this one is not taken for its silence.
ANSWER_SECONDS = 0.5
#: Linux' option, since 6.15, of how long TCP may wait until it sends again what nobody has
#: acknowledged, and how long that is here. By itself it waits twice as long each time, so what has
#: been cut off for 7 seconds is heard of again after 13.
TCP_RTO_MAX_MS, RTO_MAX = 44, 1000
#: Of Linux' struct tcp_info: milliseconds since data, and since an acknowledgement, last came.
_HEARD = struct.Struct("=52x2I")
#: The network between the ends is down: nobody has closed the connection.
UNREACHABLE = frozenset(
    {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)


class ControlSocket:
    """A socket of the control plane with what is still to be sent on it."""

    def __init__(
        self, peer: int, sock: socket.socket, seals: Seals, limit: int, timeout: float
    ) -> None:
        self.peer = peer
        self.sock = sock
        self._decoder = Decoder(limit, seals.receiving)
        self._seal = seals.sending
        self.unsent = bytearray()
        self.events = selectors.EVENT_READ
        self.open = True  #: what comes is believed, and something can be sent
        self._owed = 0.0  # since when something that was sent may not have arrived
        self._cut = False  # sending found that the network is down, and says so only once
        sock.setblocking(False)
        keep_alive(sock, timeout)

    def queue(self, frame: Frame) -> None:
        """Put a frame behind what is still to be sent."""
        self.unsent += sealed(frame, self._seal)

    def send(self) -> None:
        """Send what the kernel takes; a dead peer is noticed when reading."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(memoryview(self.unsent)[:262144])]
                self._owed = self._owed or time.monotonic()
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

    def silence(self, now: float) -> float:
        """Return for how many seconds the other machine has owed an answer; 0 if it owes none.

        The kernel knows when it was last heard, also that it answered the kernel's own questions.
        """
        if not self._owed or self.arrived():
            self._owed = 0.0
        if not self._owed or now - self._owed < ANSWER_SECONDS:
            return now - self._owed if self._owed else 0.0
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HEARD.size)
        data, acknowledgement = _HEARD.unpack(info)
        return float(min(data, acknowledgement)) / 1000

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

    def frames(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole now that `data` came; none once this is not open."""
        return self._decoder.feed(data) if self.open else []


def silence_seconds(timeout: float) -> float:
    """Return after how long without a sign of life a machine counts as gone.

    All ranks shall hear of it within half of the job's timeout, or 3 seconds if that is more.
    """
    return min(SILENCE_SECONDS, max(timeout / 2, 3.0) * 2 / 3)


def keep_alive(sock: socket.socket, timeout: float) -> None:
    """Have the kernel notice that a peer's machine is gone, `silence_seconds` after it last spoke.

    If something is sent to it in between, the kernel counts from then on: see
    `ControlSocket.silence`. Where the machine comes back in time, it is heard a second later.
    """
    seconds = silence_seconds(timeout)
    step = max(1, int(seconds / 5))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
    with contextlib.suppress(OSError):  # an older kernel
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RTO_MAX)
