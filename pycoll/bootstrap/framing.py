"""Frames of the control plane: how they lie on the wire, with a hard limit on every length.

A frame is a 20-byte header, a key and a body. Nothing here reads a socket or runs code that
came over one: bytes in, `Frame` values out, BootstrapError for anything else.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pycoll.errors import BootstrapError

HEADER = struct.Struct("<BBHIIQ")  # kind, zero, bytes of key, rank, bytes of body, group
LENGTH = struct.Struct("<I")

MAX_KEY = 256  #: bytes of a key
MAX_BLOB = 1 << 20  #: bytes that one rank may give to an exchange


class Kind(enum.IntEnum):
    """What a frame says; `key` and `body` are in brackets."""

    HELLO = 1  #: member to rank 0: who I am (body: `Member`)
    WELCOME = 2  #: rank 0 to members: all are here (body: blobs of every `Member`)
    REFUSED = 3  #: rank 0 to members: the job does not start (body: why)
    CONTRIBUTE = 4  #: my part of an exchange (key: its name; body: seconds as f64, then my blob)
    GATHERED = 5  #: an exchange is complete (key: its name; body: blobs of all ranks)
    MISSING = 6  #: an exchange failed (key: its name; body: who did not come)
    ABORT = 7  #: `rank` gives up (key: kind; body: text)
    LOST = 8  #: `rank` is gone (key: reason)
    CLOSED = 9  #: `rank` leaves in good order (key: reason; body: calls it finished, u64)
    JOIN = 10  #: I am in a new group (body: its ranks, u32 each)
    ASK = 11  #: member to rank 0: I want the boards of the group; rank 0 to members: say yours
    BOARD = 12  #: member to rank 0: my board (body)
    BOARDS = 13  #: rank 0 to members: what the group said (body: blobs, empty where unknown)
    DEAD = 14  #: member to rank 0: I saw a process end (body: its rank, u32)


class Frame(NamedTuple):
    """One message of the control plane."""

    kind: Kind
    rank: int  #: whom it is about; rank 0 checks it against the connection
    key: str = ""
    body: bytes = b""
    group: int = 0  #: the communicator; 0 is that of all ranks


def encode(frame: Frame) -> bytes:
    """Return the frame's bytes."""
    key = frame.key.encode()
    if len(key) > MAX_KEY:
        raise BootstrapError(f"control frame: the key has {len(key)} bytes, at most {MAX_KEY}")
    header = HEADER.pack(frame.kind, 0, len(key), frame.rank, len(frame.body), frame.group)
    return header + key + frame.body


class Decoder:
    """Cuts a stream of bytes into frames; it never holds more than one frame's limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of a body
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes as they came and return the frames that are now whole.

        Raises:
            BootstrapError: The stream is not frames. It cannot be read any further.
        """
        self._held += data
        frames = []
        start = 0
        while start < (end := self._end(start)) <= len(self._held):
            frames.append(self._frame(start, end))
            start = end
        del self._held[:start]
        return frames

    def missing(self) -> int:
        """Return how many bytes can be read without reading past the present frame."""
        return self._end(0) - len(self._held)

    def _end(self, start: int) -> int:
        """Return where the frame at `start` ends, or its header while that is not whole."""
        if len(self._held) - start < HEADER.size:
            return start + HEADER.size
        kind, zero, key, rank, body, _ = HEADER.unpack_from(self._held, start)
        if kind not in _KINDS or zero != 0:
            raise BootstrapError(
                f"control frame: kind is {kind}.{zero}, want 1.0 to {max(_KINDS)}.0"
            )
        if key > MAX_KEY:
            raise BootstrapError(f"control frame: the key has {key} bytes, at most {MAX_KEY}")
        if body > self._limit:
            raise BootstrapError(
                f"control frame: {Kind(kind).name} of rank {rank} has {body} bytes, "
                f"at most {self._limit}"
            )
        return int(start + HEADER.size + key + body)

    def _frame(self, start: int, end: int) -> Frame:
        kind, _, key, rank, _, group = HEADER.unpack_from(self._held, start)
        middle = start + HEADER.size + key
        try:
            name = self._held[start + HEADER.size : middle].decode()
        except UnicodeDecodeError:
            raise BootstrapError(f"control frame: {Kind(kind).name}: key is not UTF-8") from None
        return Frame(Kind(kind), rank, name, bytes(self._held[middle:end]), group)


_KINDS = frozenset(int(kind) for kind in Kind)


def pack_blobs(blobs: Sequence[bytes]) -> bytes:
    """Return the blobs one behind the other, each after its length."""
    return b"".join(LENGTH.pack(len(blob)) + blob for blob in blobs)


def unpack_blobs(data: bytes, count: int) -> list[bytes]:
    """Return the `count` blobs that `pack_blobs` joined."""
    blobs: list[bytes] = []
    start = 0
    while start < len(data):
        if len(data) - start < LENGTH.size:
            break
        end = start + LENGTH.size + LENGTH.unpack_from(data, start)[0]
        if end > len(data):
            break
        blobs.append(data[start + LENGTH.size : end])
        start = end
    if start != len(data) or len(blobs) != count:
        raise BootstrapError(
            f"control frame: {len(data)} bytes hold {len(blobs)} whole blobs, want {count}"
        )
    return blobs
