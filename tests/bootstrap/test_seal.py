"""A relay between two ranks, which knows no secret: whatever it does, nobody acts on it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pycoll.bootstrap import rendezvous
from pycoll.bootstrap.control import Control
from pycoll.bootstrap.control_loop import TAMPERED
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.framing import HEADER, Frame, FrameType, encode
from pycoll.bootstrap.handshake import PREFACE, PROOF_BYTES
from pycoll.bootstrap.reasons import FORGED
from pycoll.bootstrap.seal import TAG_BYTES
from pycoll.errors import BootstrapError, PycollError

SECONDS = 30.0  #: generous: reached only by a hang
UP, DOWN = "up", "down"  #: towards rank 0, and away from it

pytestmark = pytest.mark.usefixtures("no_leak")

Change = Callable[["Relay", str, bytes], bytes]


class Relay:
    """Passes on what two ranks say, frame by frame, and does to it what it is told to do."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.seen: dict[str, list[bytes]] = {UP: [], DOWN: []}  #: frames as they came
        self.change: dict[str, Change] = {}
        self._threads = [threading.Thread(target=self._serve, args=(port,))]
        self._threads[0].start()

    def close(self) -> None:
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        self._listener.close()

    def _serve(self, port: int) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        with near, far:
            back = threading.Thread(target=self._pass, args=(DOWN, far, near))
            back.start()
            self._pass(UP, near, far)
            back.join()

    def _pass(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one end has given up, as it should
            sink.sendall(read(source, PREFACE.size))
            sink.sendall(read(source, PROOF_BYTES))
            while frame := self._frame(source):
                self.seen[way].append(frame)
                change = self.change.get(way)
                sink.sendall(change(self, way, frame) if change else frame)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _frame(self, source: socket.socket) -> bytes:
        head = read(source, HEADER.size + TAG_BYTES)
        if not head:
            return b""
        _, _, key, _, body, _ = HEADER.unpack_from(head)
        return head + read(source, key + body + TAG_BYTES)


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def flipped(at: int) -> Change:
    def change(relay: Relay, way: str, frame: bytes) -> bytes:
        del relay.change[way]
        altered = bytearray(frame)
        altered[at] ^= 1
        return bytes(altered)

    return change


def repeated(relay: Relay, way: str, frame: bytes) -> bytes:
    del relay.change[way]
    return frame + frame


def dropped(relay: Relay, way: str, frame: bytes) -> bytes:
    del relay.change[way]
    return b""


def of_before(relay: Relay, way: str, frame: bytes) -> bytes:
    del relay.change[way]
    return relay.seen[way][0] + frame


def reflected(relay: Relay, way: str, frame: bytes) -> bytes:
    del relay.change[way]
    return relay.seen[DOWN if way == UP else UP][-1] + frame


def invented(relay: Relay, way: str, frame: bytes) -> bytes:
    """What any relay could do before frames had seals."""
    del relay.change[way]
    evil = encode(Frame(FrameType.ABORT, 1 if way == UP else 0, "error", b"evil"))
    head, rest = evil[: HEADER.size], evil[HEADER.size :]
    return head + bytes(TAG_BYTES) + rest + bytes(TAG_BYTES) + frame


def bare(relay: Relay, way: str, frame: bytes) -> bytes:
    del relay.change[way]
    return encode(Frame(FrameType.ABORT, 1 if way == UP else 0, "error", bytes(100)))


CHANGES = {
    "kind": flipped(0),
    "rank": flipped(4),
    "length": flipped(11),
    "header's tag": flipped(HEADER.size),
    "key": flipped(HEADER.size + TAG_BYTES),
    "tag": flipped(-1),
    "repeated": repeated,
    "dropped": dropped,
    "of before": of_before,
    "reflected": reflected,
    "invented": invented,
    "bare": bare,
}


@pytest.fixture
def relayed(secret: bytes, together, leave) -> Iterator[tuple[Relay, list[Control]]]:
    """Three ranks that have met, of which rank 1 reaches rank 0 by way of a relay."""
    with rendezvous.listen("127.0.0.1", 0, backlog=8) as listener:
        port = listener.getsockname()[1]
        relay = Relay(port)
        by = {1: relay.port, 2: port}
        until = time.monotonic() + SECONDS
        met = together(
            lambda: rendezvous.gather(listener, 3, secret, until),
            *[
                lambda r=r: rendezvous.join([("127.0.0.1", by[r])], r, 3, secret, until)
                for r in (1, 2)
            ],
        )
    controls = [Control(ControlPlane(star)) for star in met]
    yield relay, controls
    leave(controls)
    relay.close()


def told(control: Control) -> queue.Queue[tuple[object, ...]]:
    said: queue.Queue[tuple[object, ...]] = queue.Queue()
    control.attach(lambda *lost: said.put(lost), lambda *gave_up: said.put(gave_up))
    return said


@pytest.mark.parametrize("way", [UP, DOWN])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_relay_does_is_noticed_and_never_acted_on(relayed, together, way, change):
    relay, controls = relayed
    logs = [told(control) for control in controls]
    want = [b"0", b"1", b"2"]
    blobs = together(*[lambda c=c: c.exchange("a", b"%d" % c.rank, SECONDS) for c in controls])
    assert blobs == [want] * 3
    relay.change[way] = CHANGES[change]
    outcomes = together(*[lambda c=c: exchanges(c) for c in controls])
    assert isinstance(outcomes[1], PycollError)
    assert all(isinstance(outcome, PycollError) or outcome == [want] * 2 for outcome in outcomes)
    # The end that noticed it says whose connection it is, and the other end hears so.
    noticed, other = (0, 1) if way == UP else (1, 0)
    assert logs[noticed].get(timeout=SECONDS) == (other, FORGED)
    rank, kind, text = logs[other].get(timeout=SECONDS)
    assert (rank, kind) == (noticed, TAMPERED)
    assert text.startswith(f"rank {other} did not send this: control connection: the seal of pie")
    third = logs[2].get(timeout=SECONDS)
    assert third in ((1, FORGED), (rank, kind, text))
    assert not any("evil" in str(outcome) for outcome in outcomes)


def exchanges(control: Control) -> list[list[bytes]]:
    """Two, so that something comes behind a frame that was dropped or is held back."""
    begun = {key: control.begin(key, b"%d" % control.rank, SECONDS) for key in ("b", "c")}
    control.ask()
    return [control.finish(exchange, key, SECONDS) for key, exchange in begun.items()]


def test_a_relay_cannot_change_who_meets(secret, together):
    with rendezvous.listen("127.0.0.1", 0, backlog=8) as listener:
        relay = Relay(listener.getsockname()[1])
        relay.change[UP] = flipped(HEADER.size + TAG_BYTES)  # the process's id in HELLO
        until = time.monotonic() + SECONDS
        outcomes = together(
            lambda: rendezvous.gather(listener, 2, secret, until),
            lambda: rendezvous.join([("127.0.0.1", relay.port)], 1, 2, secret, until),
        )
    relay.close()
    message = r"^rank 1 at 127\.0\.0\.1:\d+ did not send what came: .* does not hold"
    with pytest.raises(BootstrapError, match=message):
        raise outcomes[0]
    assert str(outcomes[1]) == str(outcomes[0])  # rank 1 has heard why


def test_a_relay_cannot_change_who_has_met(secret, together):
    with rendezvous.listen("127.0.0.1", 0, backlog=8) as listener:
        relay = Relay(listener.getsockname()[1])
        relay.change[DOWN] = flipped(HEADER.size + TAG_BYTES + 10)  # the number of the meeting
        until = time.monotonic() + SECONDS
        star, outcome = together(
            lambda: rendezvous.gather(listener, 2, secret, until),
            lambda: rendezvous.join([("127.0.0.1", relay.port)], 1, 2, secret, until),
        )
        star.close()
    relay.close()
    with pytest.raises(BootstrapError, match=r"^rank 1: rank 0 did not send what came: control"):
        raise outcome
