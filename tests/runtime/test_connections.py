"""Links: who may connect, which of two connections stays, and what strangers achieve."""

from __future__ import annotations

import contextlib
import errno
import gc
import hmac
import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import ports
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pycoll
from pycoll.bootstrap.connection import NOT_TAKEN, TAKEN, OutgoingConnection
from pycoll.bootstrap.handshake import PREFACE, PROOF_BYTES, Handshake, Preface, Side, proof
from pycoll.config import Config
from pycoll.errors import BootstrapError, BrokenError, PeerLostError, TransportError
from pycoll.runtime.arenas import Arenas
from pycoll.runtime.native import bindings, codes, verbs
from pycoll.runtime.net import connections as links
from pycoll.runtime.net import connector
from pycoll.runtime.net.connections import Connections
from pycoll.runtime.net.connector import MOST_STRANGERS, SOCKETS, Connector, EventSource

SECONDS = 30.0  #: generous: reached only by a hang
SECRET = b"correct horse battery staple"


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Fail if a test leaves a file descriptor or a thread behind."""

    def held() -> tuple[list[str], int]:
        gc.collect()
        names = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                names.append(os.readlink(f"/proc/self/fd/{fd}").partition("[")[0])
        return sorted(names), threading.active_count()

    before = held()
    yield
    assert held() == before


class Ranks:
    """The connectors of some ranks, all in this process."""

    def __init__(self, size: int, secret: bytes = SECRET, only: int | None = None) -> None:
        listeners = [links.listen("127.0.0.1", size) for _ in range(size)]
        self.addresses = [listener.getsockname() for listener in listeners]
        self.adopted: queue.Queue[tuple[int, int, socket.socket]] = queue.Queue()
        self.silent = []  #: listen, and never answer
        self.statuses = []
        for rank, listener in enumerate(listeners):
            if only in (None, rank):
                peers = {p: a for p, a in enumerate(self.addresses) if p != rank}
                self.statuses.append(
                    Connector(listener, rank, size, secret, peers, self._adopt(rank))
                )
            else:
                self.silent.append(listener)

    def _adopt(self, rank: int) -> Callable[[int, socket.socket], None]:
        return lambda peer, sock: self.adopted.put((rank, peer, sock))

    def close(self) -> list[tuple[int, int]]:
        """Close everything; return who adopted a socket to whom, of those not looked at."""
        for status in self.statuses:
            status.close()
        for listener in self.silent:
            listener.close()
        left = []
        while not self.adopted.empty():
            rank, peer, sock = self.adopted.get()
            left.append((rank, peer))
            sock.close()
        return sorted(left)


@pytest.fixture
def ranks() -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(size: int, **options: object) -> Ranks:
        made.append(Ranks(size, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def soon() -> float:
    return time.monotonic() + SECONDS


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=SECONDS)
    sock.settimeout(SECONDS)
    return sock


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        with contextlib.suppress(ConnectionResetError):
            if piece := sock.recv(count - len(data)):
                data += piece
                continue
        break
    return data


def shake(sock: socket.socket, rank: int, size: int, secret: bytes = SECRET) -> Preface:
    """Come as an honest rank; return who answered."""
    talk = Handshake(Side.CONNECTING, secret, Preface.make(rank, size))
    sock.sendall(talk.own.encode())
    while wanted := talk.wants():
        if not (data := receive(sock, wanted)):
            raise BootstrapError("it hung up")
        sock.sendall(talk.feed(data))
    assert talk.peer is not None
    return talk.peer


# Honest ranks


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_begin_at_once_and_each_pair_has_one_connection(ranks, size: int) -> None:
    for _ in range(5):
        job = ranks(size)
        everyone = set(range(size))
        for rank, status in enumerate(job.statuses):
            status.want(everyone - {rank}, soon())
        for rank, status in enumerate(job.statuses):
            assert status.wait(everyone - {rank}, SECONDS) == set()
        ends = {}
        for _ in range(SOCKETS * size * (size - 1)):
            rank, peer, sock = job.adopted.get(timeout=SECONDS)
            ends[rank, peer] = sock
            sock.setblocking(True)
            sock.settimeout(SECONDS)
            sock.sendall(b"%d to %d" % (rank, peer))
        for (rank, peer), sock in ends.items():
            want = b"%d to %d" % (peer, rank)
            assert receive(sock, len(want)) == want
        assert job.close() == []
        for sock in ends.values():
            sock.close()


def test_who_is_called_need_not_have_asked(ranks) -> None:
    job = ranks(2)
    job.statuses[1].want({0}, soon())
    assert job.statuses[1].wait({0}, SECONDS) == set()
    assert job.statuses[0].wait({1}, SECONDS) == set()
    assert job.close() == [(0, 1), (1, 0)]


@pytest.mark.parametrize(("own", "verdict"), [(0, NOT_TAKEN), (1, TAKEN)])
def test_of_two_at_once_the_lower_ranks_stays(ranks, own: int, verdict: bytes) -> None:
    job = ranks(2, only=own)
    (status,) = job.statuses
    status.want({1 - own}, soon())
    called, _ = job.silent[0].accept()  # it is in the middle of calling
    with called, connect(job.addresses[own]) as sock:
        called.settimeout(SECONDS)
        assert len(receive(called, PREFACE.size)) == PREFACE.size
        shake(sock, 1 - own, 2)
        assert receive(sock, 1) == verdict
        if verdict == TAKEN:  # and its own attempt ends
            assert status.wait({1 - own}, SECONDS) == set()
            assert receive(called, 1) == b""
    assert job.close() == ([(1, 0)] if verdict == TAKEN else [])


def test_a_second_connection_is_not_taken(ranks) -> None:
    job = ranks(2, only=0)
    with connect(job.addresses[0]) as one, connect(job.addresses[0]) as two:
        shake(one, 1, 2)
        assert receive(one, 1) == TAKEN
        shake(two, 1, 2)
        assert receive(two, 1) == NOT_TAKEN
    assert job.close() == [(0, 1)]


def test_an_engine_that_does_not_take_it(ranks, monkeypatch) -> None:
    job = ranks(2)

    def refuse(peer: int, sock: socket.socket) -> None:
        raise BrokenError("no more sockets")

    job.statuses[0]._adopt = refuse
    job.statuses[0].want({1}, soon())
    while job.statuses[0].problem(1) != "no more sockets":
        assert job.statuses[0].wait({1}, 0.01) == {1}


# What the thread sees to besides


class Event:
    """Something to attend to, that can be rung and that may fail."""

    def __init__(self, fail: bool = False) -> None:
        self.near, self.far = socket.socketpair()
        self.attended: queue.Queue[bytes] = queue.Queue()
        self.fail = fail
        self.attention = EventSource(self.near.fileno(), self.attend)

    def attend(self) -> None:
        self.attended.put(b"" if self.fail else self.near.recv(1))
        if self.fail:
            raise BrokenError("no more")

    def close(self) -> None:
        self.near.close()
        self.far.close()


def alone(event: Event) -> tuple[Connector, tuple[str, int], queue.Queue[socket.socket]]:
    listener = links.listen("127.0.0.1", 1)
    adopted: queue.Queue[socket.socket] = queue.Queue()
    peers = {1: ("127.0.0.1", 9)}
    status = Connector(listener, 0, 2, SECRET, peers, lambda _, s: adopted.put(s), event.attention)
    return status, listener.getsockname(), adopted


def test_events_are_attended_to_as_often_as_they_come() -> None:
    event = Event()
    status, _, _ = alone(event)
    for call in (b"1", b"2", b"3"):
        event.far.sendall(call)
        assert event.attended.get(timeout=SECONDS) == call
    status.close()
    event.far.sendall(b"4")
    assert event.attended.empty()
    assert event.near.recv(1) == b"4"  # its descriptor is not the connector's to close
    event.close()


def test_what_cannot_be_attended_to_is_left_and_ranks_still_connect() -> None:
    event = Event(fail=True)
    status, address, adopted = alone(event)
    event.far.sendall(b"1")
    event.attended.get(timeout=SECONDS)
    with connect(address) as sock:
        shake(sock, 1, 2)
        assert receive(sock, 1) == TAKEN
    assert event.attended.empty()
    adopted.get(timeout=SECONDS).close()
    status.close()
    event.close()


# Strangers


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff" * 100,
        Preface.make(1, 2).encode()[:-1],
        Preface.make(1, 2).encode() + bytes(PROOF_BYTES),
        Preface.make(1, 2).encode() + b"\xff" * (1 << 20),
        Preface(9, 2, 2, bytes(32)).encode() + bytes(PROOF_BYTES),
    ],
    ids=["nothing", "http", "garbage", "half", "zero proof", "a million bytes", "no such rank"],
)
def test_a_stranger_is_dropped_and_told_nothing(ranks, said: bytes) -> None:
    job = ranks(2, only=0)
    with connect(job.addresses[0]) as sock:
        with contextlib.suppress(ConnectionError):  # it need not read all
            sock.sendall(said)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        assert len(receive(sock, 1000)) <= PREFACE.size
    job.statuses[0].want({1}, soon())
    assert job.close() == []


@pytest.mark.parametrize(
    ("rank", "size", "secret"), [(1, 2, b"another"), (1, 3, SECRET), (0, 2, SECRET), (7, 2, SECRET)]
)
def test_who_does_not_fit_is_not_taken(ranks, rank: int, size: int, secret: bytes) -> None:
    job = ranks(2, only=0)
    with connect(job.addresses[0]) as sock:
        with contextlib.suppress(BootstrapError):
            shake(sock, rank, size, secret)
        assert receive(sock, 1) == b""
    assert job.close() == []


def test_what_was_said_before_cannot_be_said_again(ranks) -> None:
    job = ranks(2, only=0)
    own = Preface.make(1, 2)
    with connect(job.addresses[0]) as honest:
        honest.sendall(own.encode())
        server = Preface.parse(receive(honest, PREFACE.size))
        said = own.encode() + proof(SECRET, Side.CONNECTING, own, server)
    with connect(job.addresses[0]) as replay:
        replay.sendall(said)
        assert len(receive(replay, 1000)) == PREFACE.size
    with connect(job.addresses[0]) as mirror:  # says back what it hears
        mirror.sendall(receive(mirror, PREFACE.size))
        mirror.sendall(bytes(PROOF_BYTES))
        assert receive(mirror, 1) == b""
    assert job.close() == []


def test_the_silent_are_dropped(ranks, monkeypatch) -> None:
    monkeypatch.setattr(connector, "STRANGER_SECONDS", 0.05)
    job = ranks(2, only=0)
    with connect(job.addresses[0]) as sock:
        assert len(receive(sock, 1000)) == PREFACE.size  # returns at its end


def test_a_flood_of_strangers_does_not_keep_a_rank_out(ranks) -> None:
    job = ranks(2)
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(connect(job.addresses[0])) for _ in range(MOST_STRANGERS + 20)]
        job.statuses[1].want({0}, soon())
        assert job.statuses[1].wait({0}, SECONDS) == set()
        assert len(receive(flood[0], 1000)) == PREFACE.size
        assert len(job.statuses[0]._visits) <= MOST_STRANGERS + 1


class Exhausted:
    """A listening socket for which there are no more file descriptors, for a while."""

    def __init__(self, sock: socket.socket, times: int) -> None:
        self._sock, self.times = sock, times

    def accept(self) -> tuple[socket.socket, object]:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def test_it_waits_while_there_are_no_file_descriptors(monkeypatch) -> None:
    listener = Exhausted(links.listen("127.0.0.1", 1), 3)
    adopted: queue.Queue[socket.socket] = queue.Queue()
    status = Connector(listener, 0, 2, SECRET, {1: ("127.0.0.1", 9)}, lambda _, s: adopted.put(s))
    with connect(listener.getsockname()) as sock:
        shake(sock, 1, 2)
        assert receive(sock, 1) == TAKEN
    assert listener.times == 0
    adopted.get(timeout=SECONDS).close()
    status.close()


@given(st.lists(st.binary(max_size=120), max_size=4), st.sampled_from(Side))
def test_any_bytes_end_a_handshake_or_are_waited_on(pieces: list[bytes], side: Side) -> None:
    talk = Handshake(side, SECRET, Preface.make(0, 2))
    for piece in pieces:
        wanted = talk.wants()
        assert 0 < wanted <= PREFACE.size
        try:
            talk.feed(piece[:wanted])
        except BootstrapError:
            return
        assert not talk.done


@given(st.integers(1, 80))
def test_a_handshake_in_pieces_never_reads_on(cut: int) -> None:
    ends = [Handshake(side, SECRET, Preface.make(r, 2)) for r, side in enumerate(Side)]
    wires = [ends[1].own.encode(), ends[0].own.encode()]
    while not (ends[0].done and ends[1].done):
        for i, end in enumerate(ends):
            piece = wires[i][: min(cut, end.wants())]
            wires[i] = wires[i][len(piece) :]
            wires[1 - i] += end.feed(piece)
    assert wires == [b"", b""]
    assert [end.peer.rank for end in ends if end.peer] == [1, 0]


# What ranks say of where they listen


@pytest.mark.parametrize(
    "blob", [b"", b"1.2.3.4", b"1.2.3.4 x", b"1.2.3.4 0", b"1.2.3.4 65536", b" 80", b"\xff 80 80"]
)
def test_an_address_that_is_none(blob: bytes) -> None:
    with pytest.raises(BootstrapError, match=r"^rank 3 says that it listens at '.*', want host po"):
        links.address(3, blob)


@given(st.binary(max_size=100))
def test_any_bytes_are_an_address_or_an_error(blob: bytes) -> None:
    with contextlib.suppress(BootstrapError):
        host, port = links.address(0, blob)
        assert host
        assert 0 < port < 65536


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(
        BootstrapError,
        match=r"^cannot listen at 192\.0\.2\.1 for ranks of other hosts: .*; PYCOLL_",
    ):
        links.listen("192.0.2.1", 1)


class PacedSocket(socket.socket):
    """A socket of a system whose congestion control is BBR."""

    given: list[tuple[bytes, bool]]  #: name, whether the socket was connected by then

    def getsockopt(self, level, name, *more):
        if (level, name) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION):
            return b"bbr".ljust(*more, b"\0")
        return super().getsockopt(level, name, *more)

    def setsockopt(self, level, name, *more):
        if (level, name) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION):
            try:
                connected = bool(self.getpeername())
            except OSError:
                connected = False
            self.given.append((*more, connected))
        super().setsockopt(level, name, *more)


def test_no_socket_has_ever_had_bbr(monkeypatch) -> None:
    # Linux paces a socket for ever that BBR has had when it connected.
    PacedSocket.given = []
    monkeypatch.setattr(socket, "socket", PacedSocket)
    with links.listen("127.0.0.1", 1) as listener:
        caller = OutgoingConnection(0, listener.getsockname(), SECRET)
        with caller.begin(Preface.make(1, 2), 0.0, SECONDS):
            pass
    assert PacedSocket.given == [(b"reno", False), (b"reno", False)]


# Links, as the engine uses them


class Job:
    """What Links use of bootstrap and failure, for two ranks that are remote to each other."""

    secret = SECRET

    def __init__(self, rank: int, peers: dict[int, bytes] | None = None) -> None:
        self.rank, self.peers = rank, peers or {}
        self.control = self
        self.gone: dict[int, str] = {}
        self.told: list[tuple[int, str]] = []
        self.world = SimpleNamespace(
            rank=rank, size=2, mapped=tuple(r == rank for r in range(2)), remote=True, rails=()
        )

    def address(self, iface: str | None) -> str:
        return iface or "127.0.0.1"

    def allgather(self, blob: bytes, timeout: float) -> list[bytes]:
        return [self.peers.get(rank, blob) for rank in range(2)]

    def lost(self) -> dict[int, str]:
        return self.gone

    def raise_failure(self) -> None:
        """Nothing has broken it."""

    def lose_link(self, peer: int, why: str) -> None:
        self.told.append((peer, why))
        raise PeerLostError(f"rank {peer}: {why}")

    def refuse_link(self, peer: int, why: str) -> None:
        self.told.append((peer, why))

    def raise_for(self, code: int, timeout: float) -> None:
        raise BrokenError(f"broken with {code}")

    def links(self, timeout: float = SECONDS) -> Connections:
        return Connections(
            None, self, self.world, Config.load({}, timeout=timeout), self, Arenas(None, {})
        )


@pytest.fixture
def no_engine(monkeypatch) -> list[tuple[int, int]]:
    """Take sockets in place of the engine."""
    adopted: list[tuple[int, int]] = []

    def adopt(comm: object, peer: int, fd: int) -> None:
        adopted.append((peer, fd))
        os.close(fd)

    monkeypatch.setattr(bindings, "comm_adopt", adopt)
    monkeypatch.setattr(bindings, "comm_broken", lambda comm: 0)
    monkeypatch.setattr(bindings, "comm_event_fd", lambda comm: -1)
    return adopted


def test_where_all_are_mapped_there_is_nothing(no_engine) -> None:
    job = Job(0)
    job.world = SimpleNamespace(rank=0, size=2, mapped=(True, True), remote=False, rails=())
    made = job.links()
    made.require([0, 1])
    made.forked()
    made.close()


def test_a_required_connection_is_made_once(no_engine) -> None:
    with links.listen("127.0.0.1", 1) as listener:
        job = Job(1, {0: b"127.0.0.1 %d" % listener.getsockname()[1]})
        made = job.links()
        waiting = threading.Thread(target=lambda: made.require([0, 1]))
        waiting.start()
        sock, _ = listener.accept()
        key = hmac.digest(SECRET, b"links", "sha256")
        talk = Handshake(Side.LISTENING, key, Preface.make(0, 2))
        with sock:
            sock.settimeout(SECONDS)
            sock.sendall(talk.own.encode())
            while wanted := talk.wants():
                sock.sendall(talk.feed(receive(sock, wanted)))
            sock.sendall(TAKEN)
            waiting.join(SECONDS)
            made.require([0])
        made.close()
    assert [peer for peer, _ in no_engine] == [0]


def test_a_peer_that_does_not_answer_is_named(no_engine) -> None:
    with links.listen("127.0.0.1", 1) as silent:
        port = silent.getsockname()[1]
        job = Job(0, {1: b"127.0.0.1 %d" % port})
        made = job.links(timeout=0.1)
        with pytest.raises(
            PeerLostError,
            match=rf"^rank 1: it could not be reached at 127\.0\.0\.1:{port} within 0\.1 s \(no ",
        ):
            made.require([1])
        made.close()


@pytest.mark.native
def test_the_timeout_of_a_call_holds_for_its_connections() -> None:
    def rank() -> None:
        comm = pycoll.init()
        x, seconds = np.ones(3), []
        comm._engine.links.require = lambda peers, timeout=None: seconds.append(timeout)
        comm.allreduce(x, timeout=1)
        comm.allreduce([x, np.ones(3)], timeout=2)
        comm.barrier(timeout=3)
        comm.exchange([(x, 0)], [(np.empty(3), 0)], timeout=4)
        comm.gatherv(x, counts=[3], timeout=5)
        comm.broadcast(x)
        assert seconds == [1, 2, 3, 4, 5, None]

    pycoll.spawn(rank, 1, timeout=60)


def test_a_peer_that_refuses_is_named_with_the_reason(no_engine, caplog) -> None:
    caplog.set_level(logging.INFO, "pycoll")
    with ports.refused() as (_, port):
        job = Job(0, {1: b"127.0.0.1 %d" % port})
        made = job.links(timeout=2)
        with pytest.raises(PeerLostError, match=r"within 2 s \(Connection refused\)$"):
            made.require([1])
        made.close()
    assert "rank 0: no connection to rank 1: Connection refused" in caplog.messages


@pytest.mark.parametrize(
    ("gone", "reason"), [(1, "died"), (1, "closed"), (0, "died"), (7, "unreachable")]
)
def test_nobody_waits_for_a_connection_when_a_rank_is_gone(no_engine, gone, reason) -> None:
    with links.listen("127.0.0.1", 1) as silent:
        job = Job(0, {1: b"127.0.0.1 %d" % silent.getsockname()[1]})
        made = job.links()
        job.gone[gone] = reason
        with pytest.raises(
            PeerLostError, match=rf"^rank {gone}: no connection to rank 1 was made y"
        ):
            made.require([1])
        made.close()


def test_a_broken_communicator_waits_for_no_connection(no_engine, monkeypatch) -> None:
    with links.listen("127.0.0.1", 1) as silent:
        job = Job(0, {1: b"127.0.0.1 %d" % silent.getsockname()[1]})
        made = job.links()
        job.gone[5] = "closed"  # of no interest
        monkeypatch.setattr(bindings, "comm_broken", lambda comm: codes.ABORTED)
        with pytest.raises(BrokenError, match=r"^broken with -"):
            made.require([1])
        made.close()


def test_the_engine_is_attended_to_while_nobody_calls(no_engine, monkeypatch, caplog) -> None:
    state = SimpleNamespace(live=2, connections=2, failures=0, revivals=0, unshared="")
    event = Event()
    monkeypatch.setattr(bindings, "comm_event_fd", lambda comm: event.attention.fd)
    monkeypatch.setattr(bindings, "comm_handle_events", lambda comm: event.attend())
    monkeypatch.setattr(verbs, "comm_net_state", lambda comm: SimpleNamespace(**vars(state)))
    monkeypatch.setattr(links.Resends, "told", lambda self: "a:1: 3 requests that came twice")
    caplog.set_level(logging.INFO, "pycoll")
    made = Job(0, {1: b"127.0.0.1 9"}).links()
    changes_by_call = {
        b"1": {},
        b"2": {"failures": 1, "live": 1},
        b"3": {"revivals": 1},
        b"4": {"unshared": "mlx5_0 has none"},
        b"5": {},
    }
    for call, changes in changes_by_call.items():
        vars(state).update(changes)
        event.far.sendall(call)
        assert event.attended.get(timeout=SECONDS) == call
    made.close()
    event.close()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert re.fullmatch(r"rank 0: ranks of other hosts come to 127\.0\.0\.1:\d+", said[0][1])
    assert said[1:] == [
        ("WARNING", "rank 0: an RDMA connection failed; 1 of 2 carry messages"),
        ("INFO", "rank 0: an RDMA connection is back; 1 of 2 carry messages"),
        ("INFO", "rank 0: RDMA connections do not share receives: mlx5_0 has none"),
        ("INFO", "rank 0: since it began, by a:1: 3 requests that came twice"),
    ]


def test_a_connection_that_the_engine_cannot_use_breaks_the_communicator(
    no_engine, monkeypatch
) -> None:
    def refuse(comm: object, peer: int, fd: int) -> None:
        raise TransportError("no memory may be locked")

    monkeypatch.setattr(bindings, "comm_adopt", refuse)
    with links.listen("127.0.0.1", 1) as listener:
        job = Job(0, {1: b"127.0.0.1 %d" % listener.getsockname()[1]})
        made = job.links()
        with connect(made._connector._listener.getsockname()) as sock:
            shake(sock, 1, 2, hmac.digest(SECRET, b"links", "sha256"))
            receive(sock, 2)  # its end
        made.close()
    assert job.told == [(1, "its connection cannot be used here (no memory may be locked)")]


def test_a_lie_about_an_address_leaves_nothing_open(no_engine) -> None:
    with pytest.raises(BootstrapError, match=r"^rank 1 says that it listens at 'nowhere', want"):
        Job(0, {1: b"nowhere"}).links()


def test_a_forked_child_lets_go(no_engine) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    made = Job(0, {1: b"127.0.0.1 9"}).links()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = held()  # what else there is may let go by itself in a child
        made.forked()
        os.write(writer, b"%d" % (before - held()))
        os._exit(0)
    os.waitpid(child, 0)
    let_go = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    before = held()
    made.close()
    assert let_go == before - held() > 0
