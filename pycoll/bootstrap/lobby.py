"""Lobby: where processes come that a running job takes in, by `grow` on one side, `join` here.

Rank 0 of the communicator that grows opens it, for as long as that takes. Whoever has proved the
key waits there until as many have come as are wanted. Each of these gets a `Ticket`, and then meets
the others as the ranks of any job meet (`rendezvous`). The connection stays until they have met, so
that whoever dies meanwhile is missed at once. Who is not needed is let go, and comes again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pycoll.bootstrap import environment, handshake, rendezvous, route, user_key
from pycoll.bootstrap.framing import Decoder, Frame, FrameType, sealed
from pycoll.bootstrap.handshake import Handshake, Preface, Side
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import GUEST_SECONDS, HELLO_LIMIT, LOOK_SECONDS, Address, Guest
from pycoll.bootstrap.seal import SealError
from pycoll.config import Config
from pycoll.errors import BootstrapError, CollectiveTimeout, PeerLostError, UsageError

#: How long a port is waited for that somebody else has, who may be about to end.
BUSY_SECONDS = 2.0
NUMBER_BYTES = 32  #: of what is drawn for a meeting
_MOST_STRANGERS = 64  #: connections that have not proved themselves
_TICKET = struct.Struct(f"<IIHB{NUMBER_BYTES}s")


class Ticket(NamedTuple):
    """What a newcomer is told: who it is, and where it meets the others."""

    rank: int
    size: int
    port: int  #: on the host by which the newcomer has reached the lobby
    public: bool  #: anybody could have joined the job before
    number: bytes  #: drawn for this meeting

    def pack(self) -> bytes:
        """Return it as it travels."""
        return _TICKET.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Ticket:
        """Read what `pack` wrote."""
        if len(data) != _TICKET.size:
            raise BootstrapError(f"ticket: {len(data)} bytes, want {_TICKET.size}")
        rank, size, port, public, number = _TICKET.unpack(data)
        if not 0 < rank < size or not port:
            raise BootstrapError(f"ticket: rank {rank} of {size} at port {port}")
        return cls(rank, size, port, bool(public), number)


def places(address: str) -> list[Address]:
    """Return the hosts and ports of a PYCOLL_JOIN_ADDRESS, whose form Config has checked."""
    return [environment.split(one) for one in address.split(",")]


def secret(config: Config, address: str) -> bytes:
    """Return what members and newcomers must know.

    Raises:
        UsageError: There is nothing that only they can know.
        BootstrapError: There is no place for the user's key.
    """
    if config.secret:
        return config.secret
    if not all(route.is_loopback(host) for host, _ in places(address)):
        raise UsageError(
            f"PYCOLL_SECRET is not set, and {address} can be reached from other machines: set it "
            "to the same output of `openssl rand -hex 32` on every rank and every newcomer"
        )
    return user_key.secret(config.cache, b"lobby")


def lobby_key(known: bytes) -> bytes:
    """Return what proves a newcomer to the lobby, and the lobby to it; of use nowhere else."""
    return hmac.digest(known, b"pycoll lobby", hashlib.sha256)


def meeting_key(known: bytes, number: bytes) -> bytes:
    """Return the secret of the job that is made of members and newcomers."""
    return hmac.digest(known, b"pycoll grown " + number, hashlib.sha256)


def here(addresses: Sequence[Address]) -> Address:
    """Return which of the addresses this machine has; if there is only one, that."""
    if len(addresses) == 1:
        return addresses[0]
    for host, port in addresses:
        with contextlib.suppress(OSError):
            if any(route.is_here(str(found[4][0])) for found in socket.getaddrinfo(host, port)):
                return host, port
    listed = ", ".join(f"{host}:{port}" for host, port in addresses)
    raise BootstrapError(f"grow: rank 0, on {socket.gethostname()}, has none of {listed}")


def listen(address: Address, backlog: int) -> socket.socket:
    """Listen where newcomers come; a port that is taken may be that of a rank that is ending.

    Raises:
        BootstrapError: Somebody has it, and keeps it.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return rendezvous.listen(*address, backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                text = error.strerror or str(error)
                raise BootstrapError(
                    f"grow: rank 0 cannot listen at {address[0]}:{address[1]}: {text}"
                ) from None
        time.sleep(LOOK_SECONDS)


class Lobby:
    """Rank 0's side; a context manager, whose end lets go of everybody.

    Args:
        listener: A listening socket, which stays open.
        key: See `lobby_key`.
        version: Of pycoll, which newcomers must have, too.
    """

    def __init__(self, listener: socket.socket, key: bytes, version: str) -> None:
        self._listener, self._key, self._version = listener, key, version
        self._guests: dict[socket.socket, Guest] = {}  # strangers yet, oldest first
        self._waiting: dict[socket.socket, Guest] = {}  # in the order in which they came
        self._admitted: list[Guest] = []
        self._refused, self._refusal = 0, ""  # how many, and the last
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Lobby:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for guest in [*self._guests.values(), *self._waiting.values(), *self._admitted]:
            guest.sock.close()

    def gather(self, count: int, deadline: float, check: Callable[[], None]) -> None:
        """Wait until `count` newcomers wait here.

        Args:
            count: How many are wanted.
            deadline: When to give up, by `time.monotonic`.
            check: Called again and again; raises what makes waiting pointless.

        Raises:
            CollectiveTimeout: Too few came in time.
        """
        started = time.monotonic()
        while len(self._waiting) < count:
            check()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise CollectiveTimeout(
                    f"grow: rank 0 waited {round(deadline - started, 2):g} s for {count} "
                    f"newcomer{'s' if count > 1 else ''}, and {len(self._waiting)} came"
                    f"{self._turned_away()}; the communicator is as it was"
                )
            self._serve(min(remaining, LOOK_SECONDS))

    def admit(self, count: int, ticket: Ticket) -> None:
        """Give tickets to those who came first; `ticket` is that of the first one."""
        for number, guest in enumerate([*self._waiting.values()][:count]):
            assert guest.seals is not None
            body = ticket._replace(rank=ticket.rank + number).pack()
            del self._waiting[guest.sock]
            self._admitted.append(guest)
            with contextlib.suppress(OSError):  # `check` will say so
                guest.sock.send(sealed(Frame(FrameType.WELCOME, 0, "", body), guest.seals.sending))

    def check(self) -> None:
        """Raise PeerLostError if one who has a ticket is gone, before all have met."""
        for guest in self._admitted:
            try:
                what = "spoke out of turn" if guest.sock.recv(1) else "went away"
            except BlockingIOError:
                continue
            except OSError as error:
                what = f"went away: {error.strerror or error}"
            raise PeerLostError(
                f"grow: a newcomer ({guest.member}) {what} before all ranks had met; "
                "the communicator is as it was"
            )

    def _serve(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data.sock.fileno() >= 0:  # not dropped in this round
                self._read(key.data)
        now = time.monotonic()
        for guest in [guest for guest in self._guests.values() if guest.until <= now]:
            self._read(guest)  # this rank may have been late itself
            if guest.sock in self._guests and guest.until <= now:
                self._drop(guest, f"nothing but silence after {GUEST_SECONDS:g} s")

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:  # it was gone before we looked
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(0.01)  # it is still there: others must go before it can come
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guest = Guest(sock, address, Handshake(Side.LISTENING, self._key, Preface.make(0, 0)))
        self._guests[sock] = guest
        self._selector.register(sock, selectors.EVENT_READ, guest)
        if len(self._guests) > _MOST_STRANGERS:  # a flood: the oldest had their chance
            self._drop(next(iter(self._guests.values())), "too many connections at once")
        with contextlib.suppress(OSError):
            sock.send(guest.talk.own.encode())

    def _drop(self, guest: Guest, why: str) -> None:
        self._refused += 1
        self._refusal = f"{guest.where}: {why}"
        self._release(guest)
        guest.sock.close()

    def _release(self, guest: Guest) -> None:
        self._selector.unregister(guest.sock)
        self._guests.pop(guest.sock, None)
        self._waiting.pop(guest.sock, None)

    def _read(self, guest: Guest) -> None:
        try:
            data = guest.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if guest.member:  # it waits here, and has nothing to say
            self._drop(guest, f"{guest.member} {'spoke out of turn' if data else 'went away'}")
            return
        if not data:
            self._drop(guest, "it hung up")
            return
        guest.held += data
        try:
            self._advance(guest)
        except (BootstrapError, SealError, OSError) as error:
            self._drop(guest, str(error))

    def _advance(self, guest: Guest) -> None:
        talk = guest.talk
        while not talk.done and (data := guest.take(talk.wants())):
            try:
                answer = talk.feed(data)
            except BootstrapError:
                if talk.peer is not None:
                    guest.sock.send(handshake.REFUSAL)
                raise
            if talk.peer and talk.done:
                guest.seals = talk.seals()
                guest.until = time.monotonic() + GUEST_SECONDS
                guest.decoder = Decoder(HELLO_LIMIT, guest.seals.receiving)
                guest.sock.send(answer)
                if talk.peer.version != handshake.PROTOCOL:  # which it finds out, too
                    raise BootstrapError(
                        f"a newcomer speaks protocol {talk.peer.version}, want "
                        f"{handshake.PROTOCOL}: same pycoll version there?"
                    )
        if guest.decoder and (data := guest.take(len(guest.held))):
            frames = guest.decoder.feed(data)
            if frames:
                self._hear(guest, frames)

    def _hear(self, guest: Guest, frames: list[Frame]) -> None:
        assert guest.seals is not None
        assert guest.decoder is not None
        first = frames[0]
        if first.kind is not FrameType.HELLO or len(frames) > 1 or guest.decoder.partial:
            raise BootstrapError(f"it began with {first.kind.name}, want HELLO alone")
        member = Member.parse(first.body)
        if first.key != self._version:
            text = (
                f"{member} runs pycoll {first.key[:40]}, the job runs {self._version}: install the "
                "same version for every rank"
            )
            frame = Frame(FrameType.REFUSED, 0, "", text.encode())
            guest.sock.send(sealed(frame, guest.seals.sending))
            raise BootstrapError(text)
        guest.member = member
        del self._guests[guest.sock]
        self._waiting[guest.sock] = guest

    def _turned_away(self) -> str:
        if not self._refused:
            return ""
        return f" ({self._refused} connections turned away, the last: {self._refusal})"


def draw() -> bytes:
    """Return a number for a meeting."""
    return os.urandom(NUMBER_BYTES)
