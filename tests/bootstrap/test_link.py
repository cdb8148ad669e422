from __future__ import annotations

import errno
import socket
import time

import pytest

from pycoll.bootstrap.control_socket import ControlSocket, keep_alive, silence_seconds
from pycoll.bootstrap.framing import Decoder, Frame, FrameType
from pycoll.bootstrap.seal import Seal, Seals

SEALS = Seals(Seal(b"s"), Seal(b"r"))


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(300, 25), (86400, 25), (30, 10), (9, 3), (6, 2), (1, 2), (0.1, 2)]
)
def test_silence_is_noticed_in_time_to_tell_all_within_half_of_the_timeout(timeout, seconds):
    with socket.socket() as sock:
        keep_alive(sock, timeout)
        assert silence_seconds(timeout) == seconds
        assert option(sock, socket.TCP_USER_TIMEOUT) == 1000 * seconds
        step = option(sock, socket.TCP_KEEPINTVL)  # at a multiple of which the kernel looks
        assert option(sock, socket.TCP_KEEPIDLE) == step
        assert -(-seconds // step) * step <= min(max(timeout / 2, 3), 25)


def test_nothing_is_owed_where_nothing_was_sent_or_all_was_acknowledged():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as caller,
        listener.accept()[0],
    ):
        link = ControlSocket(1, caller, SEALS, 100, 300.0)
        assert link.silence(time.monotonic()) == 0
        link.queue(Frame(FrameType.ASK, 0))
        link.send()
        while link.silence(time.monotonic()):
            pass


class Broken:
    """A socket whose other end has been cut off, as the kernel reports it: once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.errors = sock, [errno.ETIMEDOUT]

    def send(self, data: bytes) -> int:
        raise OSError(self.errors.pop(), "as if")

    def recv(self, count: int) -> bytes:
        return b""

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def test_a_network_that_is_down_is_not_taken_for_a_death():
    with socket.socket() as sock:
        link = ControlSocket(1, Broken(sock), SEALS, 100, 300.0)
        link.queue(Frame(FrameType.ASK, 0))
        link.send()
        assert not link.unsent
        with pytest.raises(OSError, match="the network is down"):
            link.receive()


def test_the_end_of_a_process_is_the_end_of_its_data():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with served:
            link = ControlSocket(1, caller, SEALS, 100, 300.0)
            with pytest.raises(BlockingIOError):
                link.receive()
        while True:
            try:
                assert link.receive() == b""
                break
            except BlockingIOError:  # the end is on its way
                continue
        caller.close()


@pytest.mark.parametrize("long", [0, 1, 20_000, 3_000_000])
def test_frames_of_any_length_come_whole_and_in_order(long):
    """Also those that the kernel takes in parts, of which the long one lies in a piece alone."""
    frames = [Frame(FrameType.GATHERED, 0, f"{i}", bytes([i]) * long * (i % 2)) for i in range(5)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with caller, served:
            link = ControlSocket(1, caller, SEALS._replace(sending=Seal(b"s")), 100, 300.0)
            decoder = Decoder(long, Seal(b"s"))
            for frame in frames:
                link.queue(frame)
            came = []
            while len(came) < len(frames):
                link.send()
                came += decoder.feed(served.recv(100_000))
            assert came == frames
            while not link.settled():
                link.silence(time.monotonic())
