"""Newcomer: a process that waits until a running job takes it in, see `lobby`."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Sequence

from pycoll.bootstrap import handshake, lobby, rendezvous
from pycoll.bootstrap.control_socket import keep_alive
from pycoll.bootstrap.framing import Decoder, Frame, FrameType, sealed
from pycoll.bootstrap.handshake import Handshake, Preface, Side
from pycoll.bootstrap.lobby import Ticket
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import ATTEMPT_SECONDS, HELLO_LIMIT, Address, Star
from pycoll.bootstrap.seal import SealError
from pycoll.errors import BootstrapError

#: Between two attempts, at first and at most: a job that grows waits no longer for who waits.
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.001, 0.05


class _Later(Exception):
    """This job does not take it in; there may be another try."""


def meet(
    addresses: Sequence[Address], known: bytes, version: str, deadline: float, seconds: float
) -> Star:
    """Wait at the lobby until taken in, and meet the others.

    Args:
        addresses: Where a lobby may be.
        known: The secret, see `lobby.secret`.
        version: Of pycoll.
        deadline: When to give up, by `time.monotonic`.
        seconds: How long the others may take once this process has a ticket.

    Raises:
        BootstrapError: Nobody took this process in, or the job there has another key or version.
    """
    started, problem, pause = time.monotonic(), "", PAUSE_SECONDS
    while True:
        for address in addresses:
            try:
                return _try(address, known, version, deadline, seconds)
            except _Later as later:
                problem = f"{address[0]}:{address[1]}: {later}"
            except OSError as error:
                if not problem or time.monotonic() < deadline:
                    problem = f"{address[0]}:{address[1]}: {error.strerror or error}"
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            tried = ", ".join(f"{host}:{port}" for host, port in addresses[:4])
            raise BootstrapError(
                f"join: no job took this process in at {tried} within "
                f"{round(deadline - started, 2):g} s: {problem}"
            )
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def _try(address: Address, known: bytes, version: str, deadline: float, seconds: float) -> Star:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise _Later("no time is left")
    limit = min(remaining, ATTEMPT_SECONDS)
    with socket.create_connection(address, timeout=limit) as sock:
        ticket = _wait(sock, lobby.lobby_key(known), version, limit, deadline)
        key = lobby.meeting_key(known, ticket.number)
        sock.setblocking(False)

        def check() -> None:
            with contextlib.suppress(BlockingIOError):
                if not sock.recv(1):
                    raise ConnectionResetError("rank 0 gave up")

        until = time.monotonic() + seconds
        where = [(sock.getpeername()[0], ticket.port)]
        try:
            star = rendezvous.join(where, ticket.rank, ticket.size, key, until, check=check)
        except BootstrapError as error:
            raise _Later(str(error)) from None
    return star._replace(public=star.public or ticket.public)


def _wait(sock: socket.socket, key: bytes, version: str, limit: float, deadline: float) -> Ticket:
    """Prove this process to the lobby, and wait for a ticket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    talk = Handshake(Side.CONNECTING, key, Preface.make(0, 0))
    sock.sendall(talk.own.encode())
    until = time.monotonic() + limit
    while not talk.done:
        data = rendezvous.receive(sock, talk.wants(), until)
        if data is None:
            raise _Later("it hung up before it proved to be the job")
        if talk.peer and data == handshake.REFUSAL:
            raise BootstrapError(
                "join: the job turned us away: is PYCOLL_SECRET the same there? Without it both "
                "must be one user's, with the same PYCOLL_CACHE"
            )
        try:
            answer = talk.feed(data)
        except BootstrapError as error:
            if talk.peer is None:
                raise _Later(str(error)) from None
            raise BootstrapError("join: what listens there does not know the secret") from None
        sock.sendall(answer)
    assert talk.peer is not None
    if talk.peer.version != handshake.PROTOCOL:
        raise BootstrapError(
            f"join: the job speaks protocol {talk.peer.version}, this process "
            f"{handshake.PROTOCOL}: same pycoll version on all ranks?"
        )
    seals = talk.seals()
    hello = Frame(FrameType.HELLO, 0, version, Member.me().encode())
    sock.sendall(sealed(hello, seals.sending))
    keep_alive(sock, max(1.0, deadline - time.monotonic()))
    decoder = Decoder(HELLO_LIMIT, seals.receiving)
    frames: list[Frame] = []
    while not frames:
        data = rendezvous.receive(sock, decoder.missing(), deadline)
        if data is None:
            raise _Later("the job took in others, or gave up")
        try:
            frames = decoder.feed(data)
        except SealError as error:
            raise _Later(f"rank 0 did not send what came: {error}") from None
    first = frames[0]
    if first.kind is FrameType.REFUSED:
        raise BootstrapError(f"join: {first.body.decode(errors='replace')}")
    if first.kind is not FrameType.WELCOME:
        raise _Later(f"rank 0 answered {first.kind.name}, want WELCOME")
    return Ticket.unpack(first.body)


def report(word: str) -> None:
    """Tell who started this process, by the pipe that PYCOLL_NEWCOMER names, that it has joined.

    A descendant of that process has the variable, but not the pipe: what else has its number there
    is left alone.
    """
    _, _, numbers = word.partition(":")
    if not numbers:
        return
    fd, inode = map(int, numbers.split(":"))
    with contextlib.suppress(OSError, OverflowError):
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode:
            os.write(fd, b"j")
            os.close(fd)


def pipe_word(fd: int) -> str:
    """Return what PYCOLL_NEWCOMER is of a process that has this end of a pipe."""
    return f"fd:{fd}:{os.fstat(fd).st_ino}"
