from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
import time
import types
from collections.abc import Iterator

import ports
import pytest

from pycoll.bootstrap import handshake, rendezvous
from pycoll.bootstrap.framing import HEADER, Decoder, Frame, FrameType, encode, sealed
from pycoll.bootstrap.handshake import PREFACE, PROTOCOL, Preface, Side, proof
from pycoll.bootstrap.job import Job
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.seal import Seal, Seals, digest_of
from pycoll.errors import BootstrapError

SECONDS = 30.0  #: generous: reached only by a hang

pytestmark = pytest.mark.usefixtures("no_leak")


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def three_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `join`'s deadline pass behind its third attempt.

    By the real clock it may pass before the first one or amid the last, which then gives the text.
    """
    left = [3, 2, 1]
    clock = types.SimpleNamespace(
        sleep=lambda _: left.pop(),  # between two attempts
        monotonic=lambda: time.monotonic() if left else math.inf,
    )
    monkeypatch.setattr(rendezvous, "time", clock)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with rendezvous.listen("127.0.0.1", 0, backlog=100) as sock:
        yield sock


def address(listener: socket.socket) -> tuple[str, int]:
    return ("127.0.0.1", listener.getsockname()[1])


def connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(address(listener), timeout=SECONDS)


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def prove(sock: socket.socket, secret: bytes, own: Preface) -> Seals:
    """Go through the handshake as a client that says whatever `own` says."""
    sock.sendall(own.encode())
    server = Preface.parse(receive(sock, PREFACE.size))
    sock.sendall(proof(secret, Side.CONNECTING, own, server))
    receive(sock, handshake.PROOF_BYTES)
    return handshake.seals(secret, Side.CONNECTING, own, server)


def arrive(sock: socket.socket, secret: bytes, rank: int, size: int, behind: bytes = b"") -> Seals:
    """Come as an honest rank, up to HELLO, and what is sent at once with it."""
    seals = prove(sock, secret, Preface.make(rank, size))
    hello = sealed(Frame(FrameType.HELLO, rank, "", Member.me().encode()), seals.sending)
    sock.sendall(hello + behind)
    return seals


def sealed_bytes(data: bytes, seal: Seal) -> bytes:
    """Return bytes as a rank that knows the keys sends them, be they a frame or not."""
    pieces = data[: HEADER.size], data[HEADER.size :]
    return b"".join(piece + seal.tag(digest_of(piece)) for piece in pieces)


def refusal(sock: socket.socket, seals: Seals) -> str:
    """Return what rank 0 says when it gives up."""
    decoder = Decoder(1 << 16, seals.receiving)
    frames: list[Frame] = []
    while not frames:
        data = receive(sock, decoder.missing())
        assert data
        frames = decoder.feed(data)
    assert frames[0].kind is FrameType.REFUSED
    return frames[0].body.decode()


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_every_rank_learns_of_every_rank(stars, size):
    met = stars(size)
    try:
        assert [star.rank for star in met] == list(range(size))
        for star in met:
            assert {m.seen_at("")._replace(port=0) for m in star.members} == {Member.me()}
            assert len({member.port for member in star.members}) == size
            assert (star.listener is None) == (star.size == 1)
        assert set(met[0].links) == set(range(1, size))
        assert all(set(star.links) == {0} for star in met[1:])
        for star in met[1:]:  # a link leads to the rank that it says it leads to
            star.links[0].sendall(struct.pack("<I", star.rank))
        for rank, sock in met[0].links.items():
            sock.settimeout(SECONDS)
            assert struct.unpack("<I", receive(sock, 4)) == (rank,)
    finally:
        for star in met:
            star.close()


def test_who_never_comes_is_named_on_every_rank(listener, secret, together):
    outcomes = together(
        lambda: rendezvous.gather(listener, 5, secret, soon(3)),
        lambda: rendezvous.join([address(listener)], 2, 5, secret, soon()),
        lambda: rendezvous.join([address(listener)], 4, 5, secret, soon()),
    )
    for outcome in outcomes:
        assert isinstance(outcome, BootstrapError)
    message = r"rank 0 waited .* s for ranks 1, 3 of 5, and they never came"
    with pytest.raises(BootstrapError, match=message):
        raise outcomes[0]
    assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}


def test_strangers_cannot_disturb_the_ranks(listener, secret, together):
    with (
        connect(listener),  # says nothing
        connect(listener) as web,
        connect(listener) as huge,
        connect(listener) as half,
        connect(listener) as liar,
        connect(listener) as reset,
    ):
        web.sendall(b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n" + bytes(100))
        huge.sendall(b"\xff" * 65536)
        half.sendall(Preface.make(1, 2).encode()[:20])
        liar.sendall(Preface.make(1, 2).encode() + bytes(32))
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        outcomes = together(
            lambda: rendezvous.gather(listener, 2, secret, soon()),
            lambda: rendezvous.join([address(listener)], 1, 2, secret, soon()),
        )
    for star in outcomes:
        assert len(star.links) == 1
        star.close()


def test_a_flood_of_connections_does_not_keep_a_rank_out(listener, secret, together):
    flood = [connect(listener) for _ in range(90)]  # more than are kept for two ranks
    outcomes = together(
        lambda: rendezvous.gather(listener, 2, secret, soon()),
        lambda: rendezvous.join([address(listener)], 1, 2, secret, soon()),
    )
    for held in [*flood, *outcomes]:
        held.close()


def test_silence_ends_a_connection(listener, secret, together, monkeypatch):
    monkeypatch.setattr(rendezvous, "GUEST_SECONDS", 0.05)
    with connect(listener) as silent:
        (outcome,) = together(lambda: rendezvous.gather(listener, 2, secret, soon(3)))
        assert len(receive(silent, 100)) == PREFACE.size  # then the end
    with pytest.raises(
        BootstrapError, match=r"rank 1 of 2, and it never came \(1 connections .* but silence"
    ):
        raise outcome


def test_what_a_traceback_prints_has_no_secret():
    assert repr(rendezvous.Star(1, 2, (), secret=b"hush")) == "<Star rank 1 of 2>"
    assert repr(Job(1, 2, 4711, b"hush", None)) == "<Job rank 1 of 2>"


def test_what_strangers_do_is_counted_and_not_kept(listener, secret):
    with rendezvous._Reception(listener, 2, secret) as reception:
        sizes = set()
        for turn in range(20):
            with socket.create_connection(address(listener)) as stranger:
                stranger.sendall(bytes(100))
                while f"({turn + 1} connections" not in reception.turned_away():
                    reception.serve(1.0)
            said = [v for v in vars(reception).values() if isinstance(v, list | str)]
            sizes.add(len(repr(said)))
        assert max(sizes) - min(sizes) < 20  # the port's number has more digits, or fewer


def test_a_wrong_secret_is_told_to_both_sides(listener, secret, together):
    outcomes = together(
        lambda: rendezvous.gather(listener, 2, secret, soon(3)),
        lambda: rendezvous.join([address(listener)], 1, 2, b"wrong", soon()),
    )
    with pytest.raises(
        BootstrapError, match=r"rank 1: 127.* turned us away: is PYCOLL_SECRET the same on all"
    ):
        raise outcomes[1]
    with pytest.raises(
        BootstrapError,
        match=r"\(1 connections turned away, the last: 127.*says it is rank 1: "
        r"it does not know the job's secret\)$",
    ):
        raise outcomes[0]


def serve_one(listener: socket.socket, first: bytes, second: bytes = b"") -> None:
    """Be something else that listens: answer preface and proof with these bytes, then hang up."""
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(SECONDS)
        receive(sock, PREFACE.size)
        sock.sendall(first)
        receive(sock, handshake.PROOF_BYTES)
        sock.sendall(second)


def test_a_false_rank_0_is_not_believed(listener, secret, together):
    _, outcome = together(
        lambda: serve_one(listener, Preface.make(0, 2).encode(), b"x" * 32),
        lambda: rendezvous.join([address(listener)], 1, 2, secret, soon()),
    )
    with pytest.raises(
        BootstrapError, match=r"^rank 1: 127.*: what listens there does not know the job's secret$"
    ):
        raise outcome


@pytest.mark.usefixtures("three_attempts")
def test_another_service_at_the_address_is_named_at_the_deadline(listener, secret, together):
    def other() -> None:
        listener.settimeout(SECONDS)
        for _ in range(3):
            with contextlib.suppress(ConnectionError):  # it may hang up without reading all
                serve_one(listener, b"220 smtp.example ESMTP ready" + bytes(48))

    answered, outcome = together(
        other, lambda: rendezvous.join([address(listener)], 1, 2, secret, soon())
    )
    assert answered is None
    with pytest.raises(
        BootstrapError, match=r"^rank 1 did not reach rank 0 .*: what answered is not pycoll: it be"
    ):
        raise outcome


@pytest.mark.usefixtures("three_attempts")
def test_nobody_at_the_address(secret):
    with (
        ports.refused() as where,
        pytest.raises(
            BootstrapError,
            match=rf"^rank 1 did not reach rank 0 at 127.0.0.1:{where[1]} .* refused$",
        ),
    ):
        rendezvous.join([where], 1, 2, secret, soon())


def test_rank_0_may_come_last(secret, together):
    port = ports.free()
    tried = threading.Event()
    timer = threading.Timer(0.05, tried.set)

    def rank_0() -> object:
        assert tried.wait(SECONDS)
        with rendezvous.listen("127.0.0.1", port, backlog=4) as late:
            return rendezvous.gather(late, 2, secret, soon())

    def rank_1() -> object:
        timer.start()
        return rendezvous.join([("127.0.0.1", port)], 1, 2, secret, soon())

    for star in together(rank_0, rank_1):
        assert len(star.links) == 1
        star.close()
    timer.join()  # it has set the event, and may still be a thread


def test_the_right_one_of_several_addresses_is_found(listener, secret, together):
    with (
        ports.refused() as refused,
        rendezvous.listen("127.0.0.1", 0, backlog=4) as other,
    ):
        addresses = [refused, other.getsockname(), address(listener)]
        outcomes = together(
            lambda: rendezvous.gather(listener, 2, secret, soon()),
            lambda: rendezvous.join(addresses, 1, 2, secret, soon()),
            lambda: serve_one(other, Preface.make(0, 2).encode(), b"x" * 32),
        )
    for star in outcomes[:2]:
        assert len(star.links) == 1
        star.close()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            Preface(3, 4, 9, bytes(32)),
            r"^rank 3 speaks protocol 9, rank 0 wants 7: same pycoll version on all ranks\?$",
        ),
        (Preface(3, 5, PROTOCOL, bytes(32)), r"^rank 3 has size 5, rank 0 has size 4$"),
        (Preface(9, 4, PROTOCOL, bytes(32)), r"^a process says it is rank 9, want 0 to 3$"),
    ],
)
def test_a_rank_that_does_not_fit_ends_the_bootstrap_for_all(
    listener, secret, together, own, message
):
    def others() -> str:
        with connect(listener) as honest, connect(listener) as misfit:
            seals = arrive(honest, secret, 1, 4)
            prove(misfit, secret, own)
            return refusal(honest, seals)

    gathered, told = together(lambda: rendezvous.gather(listener, 4, secret, soon()), others)
    with pytest.raises(BootstrapError, match=message):
        raise gathered
    assert told == str(gathered)


def test_a_newer_rank_0_is_named_by_the_older_rank(listener, secret, together):
    def newer() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(SECONDS)
            own = Preface(0, 2, 9, bytes(32))
            sock.sendall(own.encode())
            peer = Preface.parse(receive(sock, PREFACE.size))
            receive(sock, handshake.PROOF_BYTES)
            sock.sendall(proof(secret, Side.LISTENING, own, peer))
            receive(sock, 1)

    _, outcome = together(newer, lambda: rendezvous.join([address(listener)], 1, 2, secret, soon()))
    with pytest.raises(BootstrapError, match=r"^rank 0 speaks protocol 9, rank 1 wants 7: same "):
        raise outcome


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_with_one_rank(listener, secret, together, rank):
    def others() -> tuple[str, str]:
        with connect(listener) as honest, connect(listener) as double:
            one = arrive(honest, secret, 1, 4)
            two = arrive(double, secret, rank, 4)
            return refusal(honest, one), refusal(double, two)

    gathered, told = together(lambda: rendezvous.gather(listener, 4, secret, soon()), others)
    with pytest.raises(
        BootstrapError, match=rf"^two processes say they are rank {rank}: process \d+ on .*, and pr"
    ):
        raise gathered
    assert told == (str(gathered), str(gathered))


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (encode(Frame(FrameType.ABORT, 1)), r"^rank 1 began with ABORT of rank 1, want HELLO$"),
        (encode(Frame(FrameType.HELLO, 2)), r"^rank 1 began with HELLO of rank 2, want HELLO$"),
        (encode(Frame(FrameType.HELLO, 1, "", b"x")), r"^hello: 1 bytes, want at least 15$"),
        (
            encode(Frame(FrameType.HELLO, 1, "", bytes(5000))),
            r"^control frame: HELLO of rank 1 has 5000",
        ),
        (b"\xff" * HEADER.size, r"^control frame: kind is 255\.255"),
    ],
    ids=["abort", "other rank", "short", "long", "garbage"],
)
def test_an_authenticated_rank_that_talks_nonsense(listener, secret, together, first, message):
    def nonsense() -> None:
        with connect(listener) as sock:
            seals = prove(sock, secret, Preface.make(1, 3))
            sock.sendall(sealed_bytes(first, seals.sending))
            receive(sock, 1000)

    gathered, _ = together(lambda: rendezvous.gather(listener, 3, secret, soon()), nonsense)
    with pytest.raises(BootstrapError, match=message):
        raise gathered


def test_a_rank_that_has_just_proved_itself_to_a_late_rank_0_is_let_in(listener, secret, together):
    """On a busy machine rank 0 may read its proof when the time for that has run out."""
    reception = rendezvous._Reception(listener, 2, secret)

    def serve() -> None:
        with reception:
            while not (guests := [*reception._guests.values()]) or not guests[0].peer:
                reception.serve(1.0)
            select.select([guests[0].sock], [], [])
            guests[0].until = time.monotonic()
            while not reception.arrived:
                assert reception._guests, reception.turned_away()
                reception.serve(1.0)
            reception.arrived[1].sock.close()

    def rank_1() -> None:
        with connect(listener) as sock:
            arrive(sock, secret, 1, 2)

    assert together(serve, rank_1)[0] is None


@pytest.mark.parametrize(
    ("behind", "then", "message"),
    [
        (b"", b"", r"^rank 1 \(process \d+ on .*\) went away before all ranks had come$"),
        (b"", b"x", r"^rank 1 \(process \d+ on .*\) spoke out of turn$"),
        (b"x", b"", r"^rank 1 \(process \d+ on .*\) spoke out of turn$"),
    ],
    ids=["hangs up", "talks", "talks at once"],
)
def test_a_rank_that_is_lost_while_others_are_awaited(
    listener, secret, together, behind, then, message
):
    def rank_1() -> None:
        with connect(listener) as sock:
            arrive(sock, secret, 1, 3, behind)
            sock.sendall(then)
            if behind or then:
                receive(sock, 1000)

    gathered, _ = together(lambda: rendezvous.gather(listener, 3, secret, soon()), rank_1)
    with pytest.raises(BootstrapError, match=message):
        raise gathered


def serve_rank(listener: socket.socket, secret: bytes, *then: bytes) -> None:
    """Be rank 0 up to HELLO, then send these bytes and hang up."""
    sock, _ = listener.accept()
    with sock:
        sock.settimeout(SECONDS)
        own = Preface.make(0, 2)
        sock.sendall(own.encode())
        peer = Preface.parse(receive(sock, PREFACE.size))
        receive(sock, handshake.PROOF_BYTES)
        sock.sendall(proof(secret, Side.LISTENING, own, peer))
        receive(sock, 30)
        seals = handshake.seals(secret, Side.LISTENING, own, peer)
        for data in then:
            sock.sendall(sealed_bytes(data, seals.sending))


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([], r"^rank 1: rank 0 went away before all ranks had come$"),
        ([encode(Frame(FrameType.LOST, 0))], r"^rank 1: rank 0 answered LOST, want WELCOME$"),
        ([encode(Frame(FrameType.REFUSED, 0, "", b"sorry"))], r"^sorry$"),
        (
            [encode(Frame(FrameType.WELCOME, 0))],
            r"^control frame: 0 bytes hold 0 whole blobs, want 4$",
        ),
        ([b"\0" * HEADER.size], r"^control frame: kind is 0\.0"),
    ],
    ids=["hangs up", "other frame", "refuses", "empty welcome", "garbage"],
)
def test_a_rank_0_that_breaks_off(listener, secret, together, then, message):
    _, outcome = together(
        lambda: serve_rank(listener, secret, *then),
        lambda: rendezvous.join([address(listener)], 1, 2, secret, soon()),
    )
    with pytest.raises(BootstrapError, match=message):
        raise outcome


def test_a_rank_that_is_dropped_unheard_tries_again(listener, secret, together):
    def rank_0() -> object:
        serve_one(listener, Preface.make(0, 2).encode())  # hangs up where its proof is due
        return rendezvous.gather(listener, 2, secret, soon())

    for star in together(
        rank_0, lambda: rendezvous.join([address(listener)], 1, 2, secret, soon())
    ):
        assert len(star.links) == 1
        star.close()


def test_a_rank_0_that_falls_silent(listener, secret, together, monkeypatch):
    monkeypatch.setattr(rendezvous, "GRACE_SECONDS", 0.0)
    over = threading.Event()

    def silent() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(SECONDS)
            own = Preface.make(0, 2)
            sock.sendall(own.encode())
            peer = Preface.parse(receive(sock, PREFACE.size))
            receive(sock, handshake.PROOF_BYTES)
            sock.sendall(proof(secret, Side.LISTENING, own, peer))
            assert over.wait(SECONDS)

    def rank_1() -> object:
        try:
            return rendezvous.join([address(listener)], 1, 2, secret, soon(3))
        finally:
            over.set()

    _, outcome = together(silent, rank_1)
    with pytest.raises(
        BootstrapError, match=r"^rank 1 reached rank 0, but not all 2 ranks came in time$"
    ):
        raise outcome


def test_where_rank_0_listens():
    for host, family in [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET)]:
        with rendezvous.listen(host, 0, backlog=1) as sock:
            assert (sock.family, sock.getsockname()[0]) == (family, "127.0.0.1")
    with rendezvous.listen("node7.example", 0, backlog=1) as sock:
        assert sock.getsockname()[0] in ("::", "0.0.0.0")
        with socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=SECONDS):
            pass
