"""What goes between the host and the starter in the guest: a kind, a command's number, bytes."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<BII")


class Kind(enum.IntEnum):
    """What a frame says."""

    READY = 1  #: guest: commands may come
    START = 2  #: host: a command, in JSON: argv, cwd, env, input
    STARTED = 3  #: guest: its process id
    INPUT = 4  #: host: for its standard input, which no bytes close
    SIGNAL = 5  #: host: the number of a signal to its first process; 0: kill all that it started
    OUT = 6  #: guest: from its standard output
    ERR = 7  #: guest: from its standard error
    EXIT = 8  #: guest: its exit status, or minus a signal's number; nothing of it is left


def pack(kind: Kind, number: int, data: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEADER.pack(kind, number, len(data)) + data


class Unpacker:
    """Makes frames of bytes, however these come in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """Yield every frame that is whole now."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._rest)
            end = _HEADER.size + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield Kind(kind), number, body
