"""The lobby: who is let in, who is not, and that nobody who comes there harms the job."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import ports
import pytest

from pycoll.bootstrap import handshake, lobby, newcomer, rendezvous
from pycoll.bootstrap.framing import Frame, FrameType, sealed
from pycoll.bootstrap.handshake import PREFACE, Preface, Side, proof
from pycoll.bootstrap.lobby import Lobby, Ticket
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.rendezvous import receive
from pycoll.config import Config
from pycoll.errors import BootstrapError, CollectiveTimeout, PeerLostError, UsageError

SECONDS = 30.0  #: generous: reached only by a hang
SECRET, VERSION = b"s" * 32, "1.2.3"
TICKET = Ticket(2, 4, 4711, False, b"n" * 32)

pytestmark = pytest.mark.usefixtures("no_leak")


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


def nothing() -> None:
    pass


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with rendezvous.listen("127.0.0.1", 0, backlog=100) as sock:
        yield sock


@pytest.fixture
def opened(listener: socket.socket) -> Iterator[Lobby]:
    with Lobby(listener, lobby.lobby_key(SECRET), VERSION) as found:
        yield found


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname()[:2], timeout=SECONDS)


def wait(listener: socket.socket, secret: bytes = SECRET, version: str = VERSION) -> Ticket:
    with connect(listener) as sock:
        return newcomer._wait(sock, lobby.lobby_key(secret), version, SECONDS, soon())


class Enough(Exception):
    """As many have been turned away as a test sends."""


def refused(opened: Lobby, count: int) -> Callable[[], None]:
    def check() -> None:
        if opened._refused >= count:
            raise Enough(opened._turned_away())

    return check


class Calls:
    """Calls of `wait`, each in a thread, and what they returned or raised."""

    def __init__(self, *calls: object) -> None:
        self.outcomes: list[object] = [None] * len(calls)
        self._threads = [
            threading.Thread(target=self._run, args=(number, call))
            for number, call in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, call: object) -> None:
        try:
            self.outcomes[number] = call()  # type: ignore[operator]
        except Exception as error:
            self.outcomes[number] = error

    def end(self) -> list[object]:
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return self.outcomes


def test_each_gets_a_rank_of_its_own(listener, opened) -> None:
    calls = Calls(*[lambda: wait(listener)] * 2)
    opened.gather(2, soon(), nothing)
    opened.admit(2, TICKET)
    assert sorted(calls.end()) == [TICKET, TICKET._replace(rank=3)]


def test_a_ticket_that_is_none() -> None:
    assert Ticket.unpack(TICKET.pack()) == TICKET
    with pytest.raises(BootstrapError, match="ticket: 3 bytes, want 43"):
        Ticket.unpack(b"abc")
    with pytest.raises(BootstrapError, match="ticket: rank 4 of 4 at port 4711"):
        Ticket.unpack(TICKET._replace(rank=4).pack())


def test_strangers_do_not_matter(listener, opened, monkeypatch) -> None:
    monkeypatch.setattr(lobby, "GUEST_SECONDS", 0.2)
    monkeypatch.setattr(rendezvous, "GUEST_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        silent, rude, gone, unproved = (stack.enter_context(connect(listener)) for _ in range(4))
        rude.sendall(b"GET / HTTP/1.1\r\n" * 10)
        gone.close()
        unproved.sendall(Preface.make(0, 0).encode() + bytes(32))
        with pytest.raises(Enough, match="4 connections turned away"):
            opened.gather(1, soon(), refused(opened, 4))
        calls = Calls(lambda: wait(listener))
        opened.gather(1, soon(), nothing)
        opened.admit(1, TICKET)
        assert calls.end() == [TICKET]
        assert silent.recv(PREFACE.size + 1)[:6] == b"pycoll"


def test_a_flood_of_strangers(listener, opened) -> None:
    with contextlib.ExitStack() as stack:
        calls = Calls(lambda: opened.gather(1, soon(), nothing))
        for _ in range(150):
            stack.enter_context(connect(listener))
        found = Calls(lambda: wait(listener))
        calls.end()
        opened.admit(1, TICKET)
        assert found.end() == [TICKET]


def test_a_rank_of_a_job_is_no_newcomer(listener, opened) -> None:
    """It knows the same secret, and proves it for another purpose."""
    calls = Calls(
        lambda: rendezvous.join([listener.getsockname()[:2]], 1, 2, SECRET, soon(SECONDS))
    )
    with pytest.raises(Enough, match="does not know the secret"):
        opened.gather(1, soon(), refused(opened, 1))
    (error,) = calls.end()
    assert isinstance(error, BootstrapError)


def test_what_begins_otherwise_is_dropped(listener, opened) -> None:
    def begin(*kinds: FrameType) -> None:
        with connect(listener) as sock:
            own, key = Preface.make(0, 0), lobby.lobby_key(SECRET)
            sock.sendall(own.encode())
            server = Preface.parse(receive(sock, PREFACE.size, soon()) or b"")
            sock.sendall(proof(key, Side.CONNECTING, own, server))
            assert receive(sock, handshake.PROOF_BYTES, soon())
            seals = handshake.seals(key, Side.CONNECTING, own, server)
            frames = [Frame(kind, 0, VERSION, Member.me().encode()) for kind in kinds]
            sock.sendall(b"".join(sealed(frame, seals.sending) for frame in frames))
            assert receive(sock, 1, soon()) is None

    calls = Calls(
        lambda: begin(FrameType.LOST),
        lambda: begin(FrameType.HELLO, FrameType.HELLO),
    )
    with pytest.raises(Enough, match="2 connections turned away"):
        opened.gather(2, soon(), refused(opened, 2))
    assert calls.end() == [None, None]


def other_protocol(make: Callable[[int, int], Preface]) -> Callable[[int, int], Preface]:
    return lambda rank, size: make(rank, size)._replace(version=handshake.PROTOCOL + 1)


def test_another_protocol_is_refused_by_the_lobby(listener, opened) -> None:
    def other() -> bool:
        with connect(listener) as sock:
            own, key = other_protocol(Preface.make)(0, 0), lobby.lobby_key(SECRET)
            sock.sendall(own.encode())
            server = Preface.parse(receive(sock, PREFACE.size, soon()) or b"")
            sock.sendall(proof(key, Side.CONNECTING, own, server))
            given = receive(sock, handshake.PROOF_BYTES, soon()) or b""
            return handshake.proves(given, key, Side.LISTENING, server, own)

    calls = Calls(other)
    with pytest.raises(Enough, match=r"a newcomer speaks protocol \d+, want \d+: same pycoll"):
        opened.gather(1, soon(), refused(opened, 1))
    assert calls.end() == [True]  # it can tell what is wrong itself


def test_another_protocol_is_refused_by_a_newcomer(listener, monkeypatch) -> None:
    own, key = Preface.make(0, 0), lobby.lobby_key(SECRET)
    talk = handshake.Handshake(Side.CONNECTING, key, own)
    monkeypatch.setattr(newcomer, "Handshake", lambda *_: talk)
    monkeypatch.setattr(lobby.Preface, "make", other_protocol(Preface.make))  # the lobby's
    with Lobby(listener, key, VERSION) as opened:
        calls = Calls(lambda: wait(listener))
        with pytest.raises(Enough):
            opened.gather(1, soon(), refused(opened, 1))
        (error,) = calls.end()
    assert isinstance(error, BootstrapError)
    assert re.match(r"join: the job speaks protocol \d+, this process \d+: same", str(error))


def test_a_lobby_that_does_not_know_the_secret(listener) -> None:
    """It lets in whoever comes; the newcomer does not let it."""
    with Lobby(listener, lobby.lobby_key(b"another"), VERSION):
        calls = Calls(lambda: wait(listener))
        sock, _ = accepted(listener)
        with sock:
            sock.sendall(Preface.make(0, 0).encode())
            assert receive(sock, PREFACE.size + handshake.PROOF_BYTES, soon())
            sock.sendall(b"x" * handshake.PROOF_BYTES)
            (error,) = calls.end()
    assert isinstance(error, BootstrapError)
    assert str(error) == "join: what listens there does not know the secret"


def accepted(listener: socket.socket) -> tuple[socket.socket, object]:
    listener.settimeout(SECONDS)
    return listener.accept()


def test_too_few_came(opened) -> None:
    text = r"grow: rank 0 waited 0.05 s for 2 newcomers, and 0 came; the communicator is as it was"
    with pytest.raises(CollectiveTimeout, match=text):
        opened.gather(2, soon(0.05), nothing)


def test_who_hangs_up_is_missed(listener, opened) -> None:
    first = Calls(lambda: wait(listener))
    opened.gather(1, soon(), nothing)
    opened.admit(1, TICKET)
    first.end()  # it has a ticket, and has hung up

    def gone() -> None:
        until = soon()
        while time.monotonic() < until:
            opened.check()

    with pytest.raises(PeerLostError, match=r"a newcomer \(process \d+ on .*\) went away before"):
        gone()


def test_what_makes_waiting_pointless(opened) -> None:
    def check() -> None:
        raise PeerLostError("rank 1 is gone")

    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        opened.gather(1, soon(), check)


def test_a_port_becomes_free() -> None:
    port = ports.free()
    held = rendezvous.listen("127.0.0.1", port, 1)
    timer = threading.Timer(0.2, held.close)
    timer.start()
    lobby.listen(("127.0.0.1", port), 1).close()
    timer.join()


def test_which_address_is_here() -> None:
    assert lobby.here([("203.0.113.9", 1)]) == ("203.0.113.9", 1)  # behind some translation, say
    assert lobby.here([("203.0.113.9", 1), ("127.0.0.1", 2)]) == ("127.0.0.1", 2)
    with pytest.raises(BootstrapError, match=r"has none of 203.0.113.9:1, 203.0.113.8:1"):
        lobby.here([("203.0.113.9", 1), ("203.0.113.8", 1)])


@pytest.mark.parametrize("text", ["x", "node7", "node7:0", "node7:1,", ":1"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"PYCOLL_JOIN_ADDRESS is .*, want host:port, or several"):
        Config.load({"PYCOLL_JOIN_ADDRESS": text})


@pytest.mark.parametrize("text", ["maybe", "fd:1", "fd:x:1", "fd:1:2:3"])
def test_a_newcomer_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"PYCOLL_NEWCOMER is .*, want yes or no"):
        Config.load({"PYCOLL_NEWCOMER": text})


def test_who_started_it_is_told() -> None:
    reader, writer = os.pipe()
    word = newcomer.pipe_word(writer)
    assert Config.load({"PYCOLL_NEWCOMER": word}).newcomer == word
    newcomer.report(word)
    assert os.read(reader, 2) == b"j"
    assert os.read(reader, 1) == b""  # the other end is closed
    os.close(reader)


def test_another_pipe_of_that_number_is_left_alone() -> None:
    reader, writer = os.pipe()
    word = newcomer.pipe_word(writer)
    os.close(reader)
    os.close(writer)
    reader, writer = os.pipe()
    try:
        newcomer.report(f"fd:{writer}:{int(word.rpartition(':')[2]) ^ 1 << 40}")
        newcomer.report("fd:999999999:1")
        newcomer.report("no")
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)
