"""Rendezvous: rank 0 listens, the others connect, and each has an authenticated socket to it.

Nothing that a stranger does to the port harms the job: until a connection has proved the job's
secret it can only be dropped. What an authenticated rank does wrong ends the bootstrap on every
rank, with the reason.

Where a launcher hands out no secret, the job's is derived from a key of its owner, which another
host may lack. Its ranks may prove something *public* instead, which anybody could derive; ranks of
rank 0's own machine may not. One rank that does makes the whole meeting public. No rank can tell a
rank 0 that lacks the key from a stranger, so each that meets by what is public says so.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import selectors
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pycoll.bootstrap import descriptors, handshake
from pycoll.bootstrap.control_router import rank_list
from pycoll.bootstrap.framing import Decoder, Frame, FrameType, pack_blobs, sealed, unpack_blobs
from pycoll.bootstrap.handshake import PREFACE, PROOF_BYTES, Handshake, Preface, Side
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.route import is_here, is_loopback
from pycoll.bootstrap.seal import SealError, Seals
from pycoll.errors import BootstrapError, PycollError

HELLO_LIMIT = 1024  #: bytes of a Member
NUMBER_BYTES = 32  #: of the number that rank 0 draws for a meeting
_PUBLIC = b"public"  #: in WELCOME, if not everyone knew the secret
GUEST_SECONDS = 5.0  #: how long a connection may take to prove itself, then to say HELLO
ATTEMPT_SECONDS = 2.0  #: how long one of several addresses may keep a rank waiting
GRACE_SECONDS = 2.0  #: how long past its deadline a rank waits for rank 0 to say who is missing
LOOK_SECONDS = 0.05  #: how often a meeting looks whether those who should come still live

Address = tuple[str, int]


class Star(NamedTuple):
    """Sockets from rank 0 to every other rank, of which this process holds its own ends."""

    rank: int
    size: int
    members: tuple[Member, ...]
    links: Mapping[int, socket.socket] = MappingProxyType({})  #: peer → socket
    seals: Mapping[int, Seals] = MappingProxyType({})  #: peer → of that socket
    #: What only these ranks know: the job's secret and a number that rank 0 drew for this meeting.
    secret: bytes = b""
    public: bool = False  #: somebody joined without the job's secret; anybody could
    #: Where the others come if this rank takes rank 0's place; of rank 0, whose port refuses them
    #: once its process has ended.
    listener: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Star rank {self.rank} of {self.size}>"  # a traceback may print it, not the secret

    def close(self) -> None:
        """Close every socket, where nobody took them over."""
        for sock in self.links.values():
            sock.close()
        if self.listener:
            self.listener.close()


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Listen for the other ranks: on loopback if `host` is that, else on every interface.

    A node's name often resolves, on that node itself, to an address that no one else reaches.
    """
    if is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel without IPv6, or a family in use
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
            )
    return socket.create_server(("", port), backlog=backlog)


def gather(
    listener: socket.socket,
    size: int,
    secret: bytes,
    deadline: float,
    public: bytes = b"",
    check: Callable[[], None] | None = None,
) -> Star:
    """Be rank 0: wait for the ranks 1 to size - 1. The listener stays open.

    Args:
        listener: A listening socket.
        size: Number of ranks.
        secret: What every rank of this job knows.
        deadline: When to give up, by `time.monotonic`.
        public: What ranks of other machines may know in its place; nothing by default.
        check: Raises, where those who should come are known already, if one of them is gone.

    Raises:
        BootstrapError: A rank did not come, went away, or does not fit the job.
        OSError: The limit of file descriptors leaves no room for a connection to each.
    """
    descriptors.make_room(size)
    descriptors.require(size - 1)
    with _Reception(listener, size, secret, public) as reception:
        started = time.monotonic()
        try:
            while len(reception.arrived) < size - 1:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    absent = [r for r in range(1, size) if r not in reception.arrived]
                    raise BootstrapError(
                        f"rank 0 waited {round(deadline - started, 2):g} s for "
                        f"{rank_list(absent)} of {size}, and {'they' if absent[1:] else 'it'} "
                        f"never came{reception.turned_away()}"
                    ) from reception.starved
                reception.serve(min(remaining, LOOK_SECONDS if check else 1.0))
                if check:
                    check()
            return reception.welcome(deadline)
        except PycollError as error:
            reception.refuse(str(error))
            raise


class Guest:
    """A connection on its way from stranger to rank."""

    def __init__(self, sock: socket.socket, address: Address, talk: Handshake) -> None:
        self.sock = sock
        self.host = address[0]
        self.where = f"{address[0]}:{address[1]}"
        self.talk = talk
        self.until = time.monotonic() + GUEST_SECONDS
        self.held = bytearray()
        self.seals: Seals | None = None  #: once it has proved itself
        self.decoder: Decoder | None = None  #: then, too
        self.member: Member | None = None

    @property
    def peer(self) -> Preface | None:
        """Return what it said of itself; not believed until it has `seals`."""
        return self.talk.peer

    def take(self, count: int) -> bytes | None:
        """Return the next `count` bytes, or None if they have not all come."""
        if len(self.held) < count:
            return None
        data = bytes(self.held[:count])
        del self.held[:count]
        return data


class _Stranger(Exception):
    """A connection that is not of this job; it is dropped and only counted."""


class _Reception:
    """Rank 0's side of the rendezvous: one selector over the listener and all guests."""

    def __init__(
        self, listener: socket.socket, size: int, secret: bytes, public: bytes = b""
    ) -> None:
        self.arrived: dict[int, Guest] = {}
        self._listener, self._size = listener, size
        self._secret, self._public = secret, public
        self._guests: dict[socket.socket, Guest] = {}  # not yet arrived, oldest first
        self._refused, self._refusal = 0, ""  # how many, and the last; strangers may be many
        self.starved: OSError | None = None  #: why those who come cannot be let in
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Reception:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._selector.close()
        kept = {} if kind else self.arrived
        for guest in [*self._guests.values(), *(self.arrived.values() if not kept else ())]:
            guest.sock.close()

    def serve(self, seconds: float) -> None:
        """Wait for something to happen, at most `seconds`, and deal with it."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)
        now = time.monotonic()
        for guest in [g for g in self._guests.values() if g.until <= now]:
            self._read(guest)  # this rank may have been late itself
            if guest.sock in self._guests and guest.until <= now:
                self._drop(guest, f"nothing but silence after {GUEST_SECONDS:g} s")

    def welcome(self, deadline: float) -> Star:
        """Tell all ranks that all have come, and hand over the sockets."""
        guests = [self.arrived[rank] for rank in range(1, self._size)]
        me, listener = Member.me(), None
        if guests:
            host, *_ = self._listener.getsockname()
            listener = listen(host, 0, backlog=16)
            me = me._replace(port=listener.getsockname()[1])
        members = (me, *(g.member.seen_at(g.host) for g in guests if g.member))
        number = os.urandom(NUMBER_BYTES)
        public = any(guest.talk.secret != self._secret for guest in guests)
        blobs = [number, _PUBLIC if public else b"", *(m.encode() for m in members)]
        frame = Frame(FrameType.WELCOME, 0, "", pack_blobs(blobs))
        seals: dict[int, Seals] = {}
        for rank, guest in enumerate(guests, start=1):
            assert guest.seals is not None
            seals[rank] = guest.seals
            guest.sock.settimeout(max(deadline - time.monotonic(), 0.1))
            try:
                guest.sock.sendall(sealed(frame, guest.seals.sending))
            except OSError as error:
                if listener:
                    listener.close()
                raise BootstrapError(f"rank {rank} ({guest.member}) went away: {error}") from None
        links = {rank: guest.sock for rank, guest in enumerate(guests, start=1)}
        secret = _session(self._public if public else self._secret, number)
        return Star(0, self._size, members, links, seals, secret, public, listener)

    def refuse(self, text: str) -> None:
        """Tell everyone who has proved to be of this job why it does not start."""
        frame = Frame(FrameType.REFUSED, 0, "", text.encode())
        for guest in [*self.arrived.values(), *self._guests.values()]:
            if guest.seals and guest.peer and guest.peer.version == handshake.PROTOCOL:
                with contextlib.suppress(OSError):
                    guest.sock.send(sealed(frame, guest.seals.sending))

    def turned_away(self) -> str:
        """Return a clause about the connections that were dropped; empty if there were none."""
        if not self._refused:
            return ""
        return f" ({self._refused} connections turned away, the last: {self._refusal})"

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:  # it was gone before we looked
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.starved = error
                time.sleep(0.01)  # it is still there: others must go before it can come
            return
        self.starved = None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = Preface.make(0, self._size)
        others = [self._public] if self._public and not is_here(address[0]) else []
        guest = Guest(sock, address, Handshake(Side.LISTENING, self._secret, own, *others))
        self._guests[sock] = guest
        self._selector.register(sock, selectors.EVENT_READ, guest)
        if len(self._guests) > 4 * self._size + 64:  # a flood: the oldest had their chance
            self._drop(next(iter(self._guests.values())), "too many connections at once")
        with contextlib.suppress(OSError):
            sock.send(own.encode())

    def _drop(self, guest: Guest, why: str) -> None:
        claim = f", says it is rank {guest.peer.rank}" if guest.peer else ""
        self._refused += 1
        self._refusal = f"{guest.where}{claim}: {why}"
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock]
        guest.sock.close()

    def _read(self, guest: Guest) -> None:
        if guest.sock.fileno() < 0:  # dropped earlier in this round
            return
        try:
            data = guest.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if guest.member:
            raise self._lost(guest, bool(data))
        if not data:
            self._drop(guest, "it hung up")
            return
        guest.held += data
        try:
            self._advance(guest)
        except _Stranger as stranger:
            self._drop(guest, str(stranger))
        except OSError as error:
            self._drop(guest, str(error))

    @staticmethod
    def _lost(guest: Guest, spoke: bool) -> BootstrapError:
        rank = guest.peer.rank if guest.peer else -1
        what = "spoke out of turn" if spoke else "went away before all ranks had come"
        return BootstrapError(f"rank {rank} ({guest.member}) {what}")

    def _advance(self, guest: Guest) -> None:
        talk = guest.talk
        while data := guest.take(talk.wants()):
            try:
                answer = talk.feed(data)
            except BootstrapError as error:
                if talk.peer is None:
                    raise _Stranger(str(error)) from None
                guest.sock.send(handshake.REFUSAL)
                raise _Stranger("it does not know the job's secret") from None
            if talk.peer and talk.done:
                guest.seals = talk.seals()
                guest.until = time.monotonic() + GUEST_SECONDS  # this rank may have been late
                guest.decoder = Decoder(HELLO_LIMIT, guest.seals.receiving)
                guest.sock.send(answer)
                handshake.check(talk.peer, 0, self._size)
        if guest.peer and guest.decoder and (data := guest.take(len(guest.held))):
            try:
                frames = guest.decoder.feed(data)
            except SealError as error:
                raise BootstrapError(
                    f"rank {guest.peer.rank} at {guest.where} did not send what came: {error}"
                ) from None
            if frames:
                self._arrive(guest, guest.peer.rank, frames)
                if len(frames) > 1 or guest.decoder.partial:
                    raise self._lost(guest, True)

    def _arrive(self, guest: Guest, rank: int, frames: list[Frame]) -> None:
        first = frames[0]
        if first.kind is not FrameType.HELLO or first.rank != rank:
            raise BootstrapError(
                f"rank {rank} began with {first.kind.name} of rank {first.rank}, want HELLO"
            )
        guest.member = Member.parse(first.body)
        if rank == 0 or rank in self.arrived:
            other = self.arrived[rank].member if rank else Member.me()
            raise BootstrapError(
                f"two processes say they are rank {rank}: {other}, and {guest.member}"
            )
        del self._guests[guest.sock]
        self.arrived[rank] = guest


def join(
    addresses: Sequence[Address],
    rank: int,
    size: int,
    secret: bytes,
    deadline: float,
    public: bytes = b"",
    check: Callable[[], None] | None = None,
) -> Star:
    """Be a rank other than 0: find rank 0 at one of `addresses` and wait until all have come.

    Where rank 0 is on another machine and does not know the secret, it may be that of `public`.
    `check` is as in `gather`.

    Raises:
        BootstrapError: Rank 0 is not there, is not of this job, or ended the bootstrap.
    """
    descriptors.make_room(size)  # it may have to take rank 0's place
    alone = len(addresses) == 1
    started = time.monotonic()
    problem = refused = ""
    pause = 0.001
    while True:
        if check:
            check()
        for address in addresses:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                tried = ", ".join(f"{host}:{port}" for host, port in addresses[:4])
                raise BootstrapError(
                    f"rank {rank} did not reach rank 0 at {tried} within "
                    f"{round(deadline - started, 2):g} s: {refused or problem or 'no address'}"
                )
            limit = remaining if alone else min(remaining, ATTEMPT_SECONDS)
            try:
                try:
                    met = _call(address, rank, size, secret, limit, deadline)
                except _NotRankZero as error:
                    if not (public and error.final and error.far):
                        raise
                    met = _call(address, rank, size, public, limit, deadline)._replace(public=True)
                    _warn_of_public(rank, address)
            except _NotRankZero as error:
                problem = f"{address[0]}:{address[1]}: {error}"
                if error.final:
                    refused = problem
                    if alone:
                        raise BootstrapError(f"rank {rank}: {problem}") from None
            except OSError as error:
                # An attempt that the deadline cut short says less than one before it.
                if not problem or time.monotonic() < deadline:
                    problem = f"{address[0]}:{address[1]}: {error.strerror or error}"
            else:
                key = _session(public if met.public else secret, met.number)
                links, seals = {0: met.sock}, {0: met.seals}
                return Star(rank, size, met.members, links, seals, key, met.public, met.listener)
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = min(2 * pause, 0.1)


def _warn_of_public(rank: int, address: Address) -> None:
    warnings.warn(
        f"rank {rank}: what answered as rank 0 at {address[0]}:{address[1]} has not proved this "
        "host's key, only what anybody could derive: it may be a stranger's. Objects (pickles) are "
        "refused. Set PYCOLL_SECRET to the same output of `openssl rand -hex 32` on every rank",
        RuntimeWarning,
        stacklevel=3,
    )


class _NotRankZero(Exception):
    """What answered at an address is not this job's rank 0 (yet)."""

    far = False  # it is on another machine

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.final = final  # trying again would change nothing


class _Met(NamedTuple):
    """What a rank knows once rank 0 has said that all have come."""

    sock: socket.socket
    seals: Seals
    listener: socket.socket  #: where the others come if this rank takes rank 0's place
    number: bytes
    public: bool
    members: tuple[Member, ...]


def _call(
    address: Address, rank: int, size: int, secret: bytes, limit: float, deadline: float
) -> _Met:
    """Come to rank 0 at an address, within `limit` seconds, and wait there until the deadline."""
    sock = socket.create_connection(address, timeout=limit)
    listener = None
    try:
        there = sock.getpeername()[0]
        try:
            server, seals = _authenticate(sock, rank, size, secret, time.monotonic() + limit)
        except _NotRankZero as error:
            error.far = not is_here(there)
            raise
        handshake.check(server, rank, size)
        listener = listen(address[0], 0, backlog=2 * size + 64)
        me = Member.me()._replace(port=listener.getsockname()[1])
        return _Met(sock, seals, listener, *_hello(sock, seals, me, rank, size, deadline))
    except BaseException:
        sock.close()
        if listener is not None:
            listener.close()
        raise


def _authenticate(
    sock: socket.socket, rank: int, size: int, secret: bytes, until: float
) -> tuple[Preface, Seals]:
    """Prove this rank to the listening side, and have it prove itself.

    Returns:
        Its preface, and the seals of what follows.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = Preface.make(rank, size)
    sock.sendall(own.encode())
    data = receive(sock, PREFACE.size, until)
    if data is None:  # also a listener of an earlier rendezvous that has just been closed
        raise _NotRankZero("it hung up at once", final=False)
    try:
        server = Preface.parse(data)
    except BootstrapError as error:
        raise _NotRankZero(str(error), final=False) from None
    sock.sendall(handshake.proof(secret, Side.CONNECTING, own, server))
    given = receive(sock, PROOF_BYTES, until)
    if given is None:  # too slow for a busy rank 0, say
        raise _NotRankZero("it hung up before it proved to be rank 0", final=False)
    if given == handshake.REFUSAL:
        text = (
            "rank 0 turned us away: is PYCOLL_SECRET the same on all ranks? Without it "
            "they must be one user's, with the same PYCOLL_CACHE"
        )
        raise _NotRankZero(text, final=True)
    if not handshake.proves(given, secret, Side.LISTENING, server, own):
        raise _NotRankZero("what listens there does not know the job's secret", final=True)
    return server, handshake.seals(secret, Side.CONNECTING, own, server)


def _session(secret: bytes, number: bytes) -> bytes:
    """Return the secret of this meeting, which the job's secret alone does not give away."""
    return hmac.digest(secret, b"pycoll session " + number, hashlib.sha256)


def _hello(
    sock: socket.socket, seals: Seals, me: Member, rank: int, size: int, deadline: float
) -> tuple[bytes, bool, tuple[Member, ...]]:
    """Say who this rank is and wait until rank 0 says that all have come."""
    sock.sendall(sealed(Frame(FrameType.HELLO, rank, "", me.encode()), seals.sending))
    decoder = Decoder((size + 1) * (HELLO_LIMIT + 4), seals.receiving)
    frames: list[Frame] = []
    until = deadline + GRACE_SECONDS
    while not frames:
        try:
            # Not a byte more than WELCOME: what follows it belongs to the control plane.
            data = receive(sock, decoder.missing(), until)
        except TimeoutError:
            raise BootstrapError(
                f"rank {rank} reached rank 0, but not all {size} ranks came in time"
            ) from None
        if data is None:
            raise BootstrapError(f"rank {rank}: rank 0 went away before all ranks had come")
        try:
            frames = decoder.feed(data)
        except SealError as error:
            raise BootstrapError(f"rank {rank}: rank 0 did not send what came: {error}") from None
    first = frames[0]
    if first.kind is FrameType.REFUSED:
        raise BootstrapError(first.body.decode(errors="replace"))
    if first.kind is not FrameType.WELCOME:
        raise BootstrapError(f"rank {rank}: rank 0 answered {first.kind.name}, want WELCOME")
    number, public, *blobs = unpack_blobs(first.body, size + 2)
    zero, *others = (Member.parse(blob) for blob in blobs)
    return number, public == _PUBLIC, (zero.seen_at(sock.getpeername()[0]), *others)


def receive(sock: socket.socket, count: int, until: float) -> bytes | None:
    """Return exactly `count` bytes, or None when the other side hung up."""
    data = b""
    while len(data) < count:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no answer in time")
        sock.settimeout(remaining)
        try:
            piece = sock.recv(count - len(data))
        except ConnectionError:
            piece = b""
        if not piece:
            return None
        data += piece
    return data
