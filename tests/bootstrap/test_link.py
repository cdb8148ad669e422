from __future__ import annotations

import errno
import socket

import pytest

from pycoll.bootstrap.link import Link, keep_alive


def option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(300, 25), (86400, 25), (20, 10), (8, 4), (1, 3), (0.1, 3)]
)
def test_silence_is_noticed_in_half_of_the_timeout_but_not_in_two_seconds(timeout, seconds):
    with socket.socket() as sock:
        keep_alive(sock, timeout)
        assert option(sock, socket.TCP_USER_TIMEOUT) == 1000 * seconds
        probes = option(sock, socket.TCP_KEEPINTVL) * option(sock, socket.TCP_KEEPCNT)
        assert 2 < option(sock, socket.TCP_KEEPIDLE) + probes <= max(seconds, 5)


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
        link = Link(1, Broken(sock), 100, 300.0)
        link.unsent += b"x"
        link.send()
        assert not link.unsent
        with pytest.raises(OSError, match="the network is down"):
            link.receive()


def test_the_end_of_a_process_is_the_end_of_its_data():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with served:
            link = Link(1, caller, 100, 300.0)
            with pytest.raises(BlockingIOError):
                link.receive()
        while True:
            try:
                assert link.receive() == b""
                break
            except BlockingIOError:  # the end is on its way
                continue
        caller.close()
