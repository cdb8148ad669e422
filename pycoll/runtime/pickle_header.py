"""Pickle headers: each shows that a pickle was made by a rank of these, for this very call.

A pickle can make its reader run anything, and the data of collectives travel without a seal. So a
header goes ahead of each pickle: its length and its digest under a key that only the
communicator's ranks know, bound to the call, to the rank that made it and to whom it is for. Where
no data leave the host, through memory that the ranks alone can reach, the digest is left out: it
takes longer than the copy.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from pycoll.errors import MismatchError, TransportError

FAILED = -1  #: instead of a length: the rank has no pickle
EVERYONE = 0xFFFFFFFF  #: whom a pickle is for, if it is not for one rank
HEADER_BYTES = 80
_LAYOUT = struct.Struct("<Qq32s32s")  # number of the call, length, digest, and the seal of it all
_BOUND = struct.Struct("<II")  # sender, receiver


class PickleHeader(NamedTuple):
    """What a rank says of a pickle before it sends it."""

    length: int
    digest: bytes  #: empty where none is wanted

    def holds(self, pickle: bytes | memoryview) -> bool:
        """Tell whether this is the pickle."""
        if len(pickle) != self.length:
            return False
        return not self.digest or self.digest == hashlib.sha256(pickle).digest()


class PickleHeaders:
    """One communicator's; a call has the same number on all ranks that are in step.

    Args:
        secret: A key of the communicator's ranks.
        rank: This process's.
        leave: Whether data of any two ranks leave a host; alike on all ranks.
    """

    def __init__(self, secret: bytes, rank: int, leave: bool) -> None:
        self._key = hmac.digest(secret, b"objects", hashlib.sha256)
        self._rank, self._leave = rank, leave

    def write(self, what: str, call: int, pickle: bytes | None, receiver: int = EVERYONE) -> bytes:
        """Return the header for a pickle of this rank, or for none.

        Args:
            what: The call, as all ranks call it.
            call: Its number among those of the communicator.
            pickle: None where it could not be made.
            receiver: The one rank that it is for, if it is for one.
        """
        length, digest = FAILED, bytes(32)
        if pickle is not None:
            length = len(pickle)
            digest = hashlib.sha256(pickle).digest() if self._leave else digest
        seal = self._seal(call, length, digest, what, self._rank, receiver)
        return _LAYOUT.pack(call, length, digest, seal)

    def read(
        self, what: str, call: int, data: bytes, sender: int, receiver: int = EVERYONE
    ) -> PickleHeader:
        """Return what a rank says of a pickle.

        Raises:
            TransportError: It is not that rank's header.
            MismatchError: It is for another of the rank's calls.
        """
        number, length, digest, given = _LAYOUT.unpack(data)
        seal = self._seal(number, length, digest, what, sender, receiver)
        if not hmac.compare_digest(seal, given):
            raise TransportError(
                f"{what}: what came for rank {sender}'s pickle header is not that: somebody "
                "between the ranks changed it; nothing was loaded"
            )
        if number != call:
            raise MismatchError(
                f"{what}: rank {sender} is at its call {number}, rank {self._rank} at its call "
                f"{call}: one of them was left out, or failed, on one rank alone"
            )
        return PickleHeader(length, digest if self._leave else b"")

    def _seal(
        self, number: int, length: int, digest: bytes, what: str, sender: int, receiver: int
    ) -> bytes:
        text = _LAYOUT.pack(number, length, digest, b"") + _BOUND.pack(sender, receiver)
        return hmac.digest(self._key, text + what.encode(), hashlib.sha256)
