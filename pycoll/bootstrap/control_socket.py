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
from collections import deque

from pycoll.bootstrap.framing import Decoder, Frame, pieces
from pycoll.bootstrap.seal import Seals

#: Seconds without a sign of life after which a machine counts as gone, if the job allows so many.
SILENCE_SECONDS = 25.0
#: What a machine may take to acknowledge, so that a pause of this one is not taken for its silence.
ANSWER_SECONDS = 0.5
LONG = 16384  #: bytes from which on a piece is not copied for each peer
MOST_AT_ONCE = 262144  #: bytes that are given to the kernel in one call
#: Bytes that are taken from it in one call: so few that their buffer is not mapped for each.
RECEIVED = 65536
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
        # What is long is shared by all who get it; what is short lies in one piece.
        self.unsent: deque[bytearray | memoryview] = deque()
        self.events = selectors.EVENT_READ
        self.open = True  #: what comes is believed, and something can be sent
        self._owed = 0.0  # since when something that was sent may not have arrived
        self._cut = False  # sending found that the network is down, and says so only once
        sock.setblocking(False)
        keep_alive(sock, timeout)

    def queue(self, frame: Frame) -> None:
        """Put a frame behind what is still to be sent."""
        for piece in pieces(frame, self._seal):
            if len(piece) >= LONG:
                self.unsent.append(memoryview(piece))
            elif self.unsent and isinstance(self.unsent[-1], bytearray):
                self.unsent[-1] += piece
            else:
                self.unsent.append(bytearray(piece))

    def send(self) -> None:
        """Send what the kernel takes; a dead peer is noticed when reading."""
        try:
            while self.unsent:
                first = self.unsent[0]
                sent = self.sock.send(memoryview(first)[:MOST_AT_ONCE])
                self._owed = self._owed or time.monotonic()
                if sent == len(first):
                    self.unsent.popleft()
                elif isinstance(first, bytearray):
                    del first[:sent]
                else:
                    self.unsent[0] = first[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._cut = error.errno in UNREACHABLE
            self.unsent.clear()

    def settled(self) -> bool:
        """Tell whether nothing is left to be sent, or was on its way when `silence` last looked."""
        return not (self.unsent or self._owed)

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
            data = self.sock.recv(RECEIVED)
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
