"""Frames of the control plane: how they lie on the wire, with a hard limit on every length.

A frame is a 20-byte header, a key and a body. On the wire the header and the rest have a seal
each, so nothing is believed, not even a length, before it has been shown to come from the peer.
Nothing here reads a socket or runs code that came over one: bytes in, `Frame` values out,
BootstrapError for anything else.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pycoll.bootstrap.seal import TAG_BYTES, Seal, digest_of
from pycoll.errors import BootstrapError

HEADER = struct.Struct("<BBHIIQ")  # kind, zero, bytes of key, rank, bytes of body, group
LENGTH = struct.Struct("<I")
CALLS = struct.Struct("<Q")  #: calls that a rank has finished

MAX_KEY = 256  #: bytes of a key
MAX_BLOB = 1 << 20  #: bytes that one rank may give to an exchange


class FrameType(enum.IntEnum):
    """What a frame says; `key` and `body` are in brackets.

    Rank 0 has the router, until another rank takes its place (`failover`).
    """

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
    ASK = 11  #: member to router: I want the statuses of the group; router to members: say yours
    STATUS = 12  #: member to router: my status (body)
    STATUSES = 13  #: router to members: what the group said (body: blobs, empty where unknown)
    DEAD = 14  #: member to router: I saw a process end (body: its rank, u32)
    #: member to a new router: I heard that a rank left the group (key: reason; body: its rank, u32,
    #: and the calls it finished, u64), or that it is lost to the job (the same without the calls)
    HEARD = 15
    LEFT = 16  #: router to members: several ranks leave in good order (body: `pack_farewells`)
    ONCE = 17  #: member to router: I want what is made once under a key (key); or it is ready there
    MAKE = 18  #: router to one member that wants it: make it (key)
    #: member to router: here it is (key; body: a byte 1 and the thing, or nothing: let another make
    #: it); router to members that want it (key; body: the thing)
    MADE = 19
    #: member to router: this rank wants to go on with those who live (body: seconds that it waits
    #: for them, f64, and a `Report`)
    RECOVER = 20
    ACCEPT = 21  #: member to router: it has joined the view that was proposed (body: its `Ballot`)
    PROPOSED = 22  #: router to survivors: join this view (body: `Proposal`)
    CHOSEN = 23  #: router to survivors: all have (body: `Proposal`)
    OUT = 24  #: router to a survivor: no view has it (body: why)
    #: member to whoever has the router: what time is it there (body: the time here, u64, in
    #: nanoseconds); and back (body: the same, and the time there)
    TIME = 25


class Frame(NamedTuple):
    """One message of the control plane."""

    kind: FrameType
    rank: int  #: whom it is about; the router checks it against the connection
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


def sealed(frame: Frame, seal: Seal) -> bytes:
    """Return the frame as it travels next: its header and the rest of it, a tag behind each."""
    return b"".join(pieces(frame, seal))


def pieces(frame: Frame, seal: Seal) -> tuple[bytes, bytes, bytes]:
    """Return the same in three; the long one in the middle is shared by all who get the frame."""
    header, rest, digests = _encoded(frame)
    first = header + seal.tag(digests[0])  # the first tag is made before the second
    return first, rest, seal.tag(digests[1])


@functools.lru_cache(maxsize=1)  # rank 0 sends one frame, which may be long, to every rank
def _encoded(frame: Frame) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
    data = encode(frame)
    header, rest = data[: HEADER.size], data[HEADER.size :]
    return header, rest, (digest_of(header), digest_of(rest))


class Decoder:
    """Cuts a stream of bytes into frames; it never holds more than one frame's limit.

    Args:
        limit: Bytes of a body, at most.
        seal: Of the direction that is read.
    """

    def __init__(self, limit: int, seal: Seal) -> None:
        self._limit = limit
        self._seal = seal
        self._held = bytearray()
        self._header = b""  # of the present frame, once it is whole and its seal holds

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes as they came and return the frames that are now whole.

        Raises:
            SealError: They are not what the peer sent. The stream cannot be read any further.
            BootstrapError: The peer sent what is no frame. The same holds.
        """
        self._held += data
        frames = []
        while self.missing() <= 0:
            piece = self._take()
            if self._header:
                frames.append(self._frame(self._header, piece))
                self._header = b""
            else:
                self._check(piece)
                self._header = piece
        return frames

    @property
    def partial(self) -> bool:
        """Whether a part of a frame has come."""
        return bool(self._header or self._held)

    def missing(self) -> int:
        """Return how many bytes can be read without reading past the present frame."""
        return self._whole() + TAG_BYTES - len(self._held)

    def _whole(self) -> int:
        """Return the bytes of the present piece: a header, or what its header announces."""
        if not self._header:
            return HEADER.size
        _, _, key, _, body, _ = HEADER.unpack(self._header)
        return int(key + body)

    def _take(self) -> bytes:
        """Return the present piece, which is whole, if its seal holds."""
        end = self._whole()
        with memoryview(self._held) as held:  # a piece may be long: it is copied once
            piece, tag = bytes(held[:end]), bytes(held[end : end + TAG_BYTES])
        del self._held[: end + TAG_BYTES]
        self._seal.check(piece, tag)
        return piece

    def _check(self, header: bytes) -> None:
        kind, zero, key, rank, body, _ = HEADER.unpack(header)
        if kind not in _KINDS or zero != 0:
            raise BootstrapError(
                f"control frame: kind is {kind}.{zero}, want 1.0 to {max(_KINDS)}.0"
            )
        if key > MAX_KEY:
            raise BootstrapError(f"control frame: the key has {key} bytes, at most {MAX_KEY}")
        if body > self._limit:
            raise BootstrapError(
                f"control frame: {FrameType(kind).name} of rank {rank} has {body} bytes, "
                f"at most {self._limit}"
            )

    def _frame(self, header: bytes, rest: bytes) -> Frame:
        kind, _, key, rank, _, group = HEADER.unpack(header)
        try:
            name = rest[:key].decode()
        except UnicodeDecodeError:
            raise BootstrapError(
                f"control frame: {FrameType(kind).name}: key is not UTF-8"
            ) from None
        return Frame(FrameType(kind), rank, name, rest[key:], group)


_KINDS = frozenset(int(kind) for kind in FrameType)
_FAREWELL = struct.Struct("<IHQ")  # rank, bytes of the reason, calls it finished


def pack_farewells(frames: Sequence[Frame]) -> bytes:
    """Return CLOSED frames of one group in the body of one LEFT."""
    text = []
    for frame in frames:
        reason = frame.key.encode()
        (calls,) = CALLS.unpack(frame.body)
        text.append(_FAREWELL.pack(frame.rank, len(reason), calls) + reason)
    return b"".join(text)


def unpack_farewells(frame: Frame) -> list[Frame]:
    """Return the CLOSED frames that are in a LEFT."""
    body, start, frames = frame.body, 0, []
    while start + _FAREWELL.size <= len(body):
        rank, length, calls = _FAREWELL.unpack_from(body, start)
        start += _FAREWELL.size
        if length > MAX_KEY or start + length > len(body):
            break
        reason = body[start : start + length].decode()
        frames.append(Frame(FrameType.CLOSED, rank, reason, CALLS.pack(calls), frame.group))
        start += length
    if start != len(body) or not frames:
        raise BootstrapError(
            f"control frame: LEFT has {len(body)} bytes, of which {len(frames)} farewells "
            f"take {start}"
        )
    return frames


def pack_blobs(blobs: Sequence[bytes]) -> bytes:
    """Return the blobs one behind the other, each after its length."""
    return b"".join(LENGTH.pack(len(blob)) + blob for blob in blobs)


def unpack_blobs(data: bytes, count: int) -> list[bytes]:
    """Return the `count` blobs that `pack_blobs` joined; equal ones are one object."""
    blobs: list[bytes] = []
    known: dict[bytes, bytes] = {}
    start, first = 0, LENGTH.size  # of the next blob
    while first <= len(data):
        end = first + LENGTH.unpack_from(data, start)[0]
        if end > len(data):
            break
        blob = data[first:end]
        blobs.append(known.setdefault(blob, blob))
        start, first = end, end + LENGTH.size
    if start != len(data) or len(blobs) != count:
        raise BootstrapError(
            f"control frame: {len(data)} bytes hold {len(blobs)} whole blobs, want {count}"
        )
    return blobs
