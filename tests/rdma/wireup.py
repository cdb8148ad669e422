"""What ranks say to each other beside RDMA, and what they write to each other by it.

Written from the description of the formats and not from pycoll's code: where the two differ, a
test fails.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x314C4350
LINES, LINE = 32, 64  #: lines of a channel, and bytes of one
INLINE = 40  #: bytes of a message that lie in its line
MAX_RAILS = 8
#: Channels of programs; two more are for messages between two ranks.
PROGRAMS = 4
CHANNELS = PROGRAMS + 2
P2P = PROGRAMS
#: Place of a transfer's piece: in the line itself; where its sender keeps it.
IN_LINE, OFFERED = 0xFFFFFFFF, 0xFFFFFFFE

HEADER = struct.Struct("=IHHII")
HELLO = struct.Struct("=IIQQQQI4x" + MAX_RAILS * "IIQ")
END = struct.Struct("=IIHHHBB16s16s2xBBB3x")
LANDED = struct.Struct(f"={CHANNELS * LINES}I{CHANNELS * LINES}s320s")
LINE_HEAD = struct.Struct(f"=QII{INLINE}s")
NOTE = struct.Struct("=QIIQQ")
COUNT = struct.Struct("=Q")
LOAN = struct.Struct(f"=Q{MAX_RAILS}I")


class Kind(IntEnum):
    """Of a wireup message."""

    HELLO = 1
    REQUEST = 2
    REPLY = 3
    FENCED = 4
    CLOSE = 5
    ABORTED = 6


class Key(NamedTuple):
    """By which one rail of a peer lets its memory be written."""

    lines: int
    slots: int
    speed: int


class Hello(NamedTuple):
    """Where a peer's memory lies that may be written."""

    queue_pairs: int
    lines: int
    lines_bytes: int
    slots: int
    slots_bytes: int
    slots_gpu: int  #: 1: the slots are memory of a GPU
    rails: tuple[Key, ...]

    def pack(self) -> bytes:
        """Return it as it travels."""
        keys = [number for rail in self.rails for number in rail]
        keys += [0] * (3 * MAX_RAILS - len(keys))
        return HELLO.pack(len(self.rails), *self[:6], *keys)

    @classmethod
    def unpack(cls, body: bytes) -> Hello:
        """Read one."""
        count, *numbers = HELLO.unpack(body)
        keys = [Key(*numbers[i : i + 3]) for i in range(6, 6 + 3 * count, 3)]
        return cls(*numbers[:6], tuple(keys))


class End(NamedTuple):
    """One end of a queue pair."""

    number: int
    psn: int
    lid: int
    pkey: int
    pkey_index: int
    mtu: int  #: as verbs number them
    layer: int
    ipv4: bytes  #: GID, as the next; zeros: none
    ipv6: bytes
    gid_type: int
    reads: int
    shares: int = 0

    def pack(self) -> bytes:
        """Return it as it travels."""
        return END.pack(*self)

    @classmethod
    def unpack(cls, body: bytes) -> End:
        """Read one."""
        return cls(*END.unpack(body))


class WireupMessage(NamedTuple):
    """One of them."""

    kind: Kind
    conn: int
    turn: int
    body: bytes


class WireupSocket:
    """Wireup messages over a stream socket."""

    def __init__(self, sock: socket.socket, patience: float) -> None:
        self._sock = sock
        sock.settimeout(patience)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def send(self, kind: Kind, body: bytes, conn: int = 0, turn: int = 0) -> None:
        """Send one."""
        self._sock.sendall(HEADER.pack(MAGIC, kind, conn, turn, len(body)) + body)

    def receive(self) -> WireupMessage | None:
        """Return the next one; None at the end of the stream."""
        head = self._read(HEADER.size)
        if not head:
            return None
        magic, kind, conn, turn, nbytes = HEADER.unpack(head)
        assert magic == MAGIC, hex(magic)
        return WireupMessage(Kind(kind), conn, turn, self._read(nbytes))

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def _read(self, nbytes: int) -> bytes:
        found = b""
        while len(found) < nbytes:
            part = self._sock.recv(nbytes - len(found))
            if not part:
                assert not found, "the stream ends within a wireup message"
                return b""
            found += part
        return found


class News(IntEnum):
    """What an immediate says of its channel."""

    CREDIT = 0
    LINE = 1  #: a message that lies in its line
    PIECE = 2  #: of a message, and not its last
    LAST = 3  #: the last piece, or a whole message; the note with it has its credit


CREDIT_BITS = (1 << 27) - 1
#: Place of a note that lies in its line.
NO_PLACE = (1 << 19) - 1


class Immediate(NamedTuple):
    """What travels with the last write of a message."""

    channel: int  #: 7: nothing, only tries the path
    news: News
    credit: (
        int  #: messages of the other direction that were consumed, as the bits go; not of pieces
    )
    pieces: int = 1
    piece: int = 0
    line: int = 0
    place: int = NO_PLACE  #: of the last piece's note: lines from the begin of the channel's slots

    def pack(self) -> int:
        """Return the number, in the host's order."""
        told = self.channel << 29 | self.news << 27
        if self.news < News.PIECE:
            return told | self.credit & CREDIT_BITS
        which = self.place if self.news is News.LAST else self.piece << 16
        return told | (self.pieces - 1) << 24 | self.line << 19 | which

    @classmethod
    def unpack(cls, number: int) -> Immediate:
        """Read one."""
        channel, news = number >> 29, News(number >> 27 & 3)
        if news < News.PIECE:
            return cls(channel, news, number & CREDIT_BITS)
        pieces, line = (number >> 24 & 7) + 1, number >> 19 & 31
        if news is News.LAST:
            return cls(channel, news, 0, pieces, pieces - 1, line, number & NO_PLACE)
        return cls(channel, news, 0, pieces, number >> 16 & 7, line)


class Note(NamedTuple):
    """What lies behind the last piece of a message, from the next whole line on, or in its line."""

    signature: int
    place: int
    nbytes: int
    count: int  #: as a line's
    credit: int  #: as an immediate's

    def pack(self) -> bytes:
        """Return the bytes."""
        return NOTE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Note:
        """Read one."""
        return cls(*NOTE.unpack_from(data))


class Line(NamedTuple):
    """The line of a message."""

    signature: int  #: of the call; the same at both ends
    place: int
    nbytes: int
    inline: bytes  #: the message, if it is small
    count: int  #: of messages on this channel, this one included

    def pack(self) -> bytes:
        """Return the 64 bytes, of which the count comes last."""
        return LINE_HEAD.pack(*self[:4]) + COUNT.pack(self.count)

    @classmethod
    def unpack(cls, data: bytes) -> Line:
        """Read one."""
        return cls(*LINE_HEAD.unpack_from(data), *COUNT.unpack_from(data, LINE_HEAD.size))


class Loan(NamedTuple):
    """Where a message lies that its receiver reads from there: the inline part of its line."""

    address: int
    keys: tuple[int, ...]  #: by each rail of the sender

    def pack(self) -> bytes:
        """Return it as it travels."""
        return LOAN.pack(self.address, *self.keys, *(0,) * (MAX_RAILS - len(self.keys)))

    @classmethod
    def unpack(cls, data: bytes) -> Loan:
        """Read one."""
        address, *keys = LOAN.unpack(data)
        return cls(address, tuple(keys))


def landed(counts: Sequence[int], why: str) -> bytes:
    """Return what says which messages have come, when no path is left by which more could."""
    low = [count & 0xFFFFFFFF for count in counts]
    return LANDED.pack(*low, bytes(CHANNELS * LINES), why.encode()[:319])
