"""Who may join: challenge and response with the job's secret, before anything else is read.

Both sides send a preface as soon as they are connected. The connecting side then proves that
it knows the secret, and then the listening side does. A proof covers both prefaces and the side
that speaks, so it can be neither replayed nor reflected, and version, rank and size are believed
only after it. The layout of preface and proof never changes: ranks with different versions of
pycoll can still authenticate each other, and so can say what is wrong. Both prefaces and the
secret also give the keys that seal what follows on the connection.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import struct
from typing import NamedTuple

from pycoll.bootstrap.seal import Seal, Seals
from pycoll.errors import BootstrapError

PROTOCOL = 7  #: raise it when frames change their meaning
MAGIC = b"pycoll"
PREFACE = struct.Struct("<6sHII32s")
PROOF_BYTES = 32
REFUSAL = bytes(PROOF_BYTES)  #: the listening side's answer to a proof that does not hold


class Side(enum.Enum):
    """Which end of the connection speaks; its value is part of the proof."""

    CONNECTING = b"connecting"
    LISTENING = b"listening"


class Preface(NamedTuple):
    """What each side says first, in the clear and not yet believed."""

    rank: int
    size: int
    version: int
    nonce: bytes

    @classmethod
    def make(cls, rank: int, size: int) -> Preface:
        """Return this process's preface with a fresh challenge."""
        return cls(rank, size, PROTOCOL, os.urandom(32))

    @classmethod
    def parse(cls, data: bytes) -> Preface:
        """Read a preface; BootstrapError if the other side is not pycoll."""
        magic, version, rank, size, nonce = PREFACE.unpack(data)
        if magic != MAGIC:
            raise BootstrapError(f"what answered is not pycoll: it began with {data[:8]!r}")
        return cls(rank, size, version, nonce)

    def encode(self) -> bytes:
        """Return the preface's bytes."""
        return PREFACE.pack(MAGIC, self.version, self.rank, self.size, self.nonce)


def proof(secret: bytes, side: Side, own: Preface, peer: Preface) -> bytes:
    """Return what shows that `side` knows the secret, in this one conversation."""
    text = side.value + own.encode() + peer.encode()
    return hmac.new(secret, text, hashlib.sha256).digest()


def proves(given: bytes, secret: bytes, side: Side, speaker: Preface, listener: Preface) -> bool:
    """Tell whether `given` is `side`'s proof, in constant time."""
    return hmac.compare_digest(given, proof(secret, side, speaker, listener))


def seals(secret: bytes, side: Side, own: Preface, peer: Preface) -> Seals:
    """Return the seals of what follows the handshake, for the end of the connection that is `side`.

    Both prefaces hold a challenge that was never used before, and so no key is ever used again.
    """
    ends = own, peer
    if side is Side.LISTENING:
        ends = peer, own
    text = b"".join(preface.encode() for preface in ends)

    def seal(speaker: Side) -> Seal:
        return Seal(hmac.digest(secret, b"frames " + speaker.value + text, hashlib.sha256))

    other = Side.LISTENING if side is Side.CONNECTING else Side.CONNECTING
    return Seals(seal(side), seal(other))


class Handshake:
    """One side of a handshake, without the socket: bytes in, bytes out, nothing parsed before.

    It never wants a byte of what follows the handshake on the connection.

    Args:
        side: Which side.
        secret: What the other side is to know.
        own: What this side says first.
        others: Secrets that do as well; only of who listens, as the other side proves first.
    """

    def __init__(self, side: Side, secret: bytes, own: Preface, *others: bytes) -> None:
        self.own = own
        self.secret = secret  #: when it is `done`, the one that the other side knows
        self.peer: Preface | None = None  #: not believed until `done`
        self.done = False
        self._side, self._others = side, others
        self._held = b""

    def wants(self) -> int:
        """Return how many bytes to read next, at most."""
        whole = PROOF_BYTES if self.peer else PREFACE.size
        return 0 if self.done else whole - len(self._held)

    def seals(self) -> Seals:
        """Return the seals of what follows on the connection; call it when it is `done`."""
        assert self.peer is not None
        return seals(self.secret, self._side, self.own, self.peer)

    def feed(self, data: bytes) -> bytes:
        """Take at most as many bytes as were wanted; return what to send.

        Raises:
            BootstrapError: The other side is not pycoll, or does not know the secret.
        """
        self._held += data
        if self.done or self.wants():
            return b""
        data, self._held = self._held, b""
        connects = self._side is Side.CONNECTING
        if self.peer is None:
            self.peer = Preface.parse(data)
            return proof(self.secret, self._side, self.own, self.peer) if connects else b""
        other = Side.LISTENING if connects else Side.CONNECTING
        for secret in (self.secret, *self._others):
            if proves(data, secret, other, self.peer, self.own):
                self.secret, self.done = secret, True
                return b"" if connects else proof(secret, self._side, self.own, self.peer)
        raise BootstrapError("it does not know the secret of these ranks")


def check(peer: Preface, rank: int, size: int) -> None:
    """Compare an authenticated peer's preface with this process's own.

    Raises:
        BootstrapError: Another protocol, another size or an impossible rank.
    """
    if peer.version != PROTOCOL:
        raise BootstrapError(
            f"rank {peer.rank} speaks protocol {peer.version}, rank {rank} wants {PROTOCOL}: "
            "same pycoll version on all ranks?"
        )
    if peer.size != size:
        raise BootstrapError(f"rank {peer.rank} has size {peer.size}, rank {rank} has size {size}")
    if not 0 <= peer.rank < size:
        raise BootstrapError(f"a process says it is rank {peer.rank}, want 0 to {size - 1}")
