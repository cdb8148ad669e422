"""Ports of this machine for tests, which others use at the same time."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

#: Below those that Linux hands out by itself (net.ipv4.ip_local_port_range), above the well-known.
RANGE = 20000, 32000


def free() -> int:
    """Return a port that is free, and that the kernel gives to no other test meanwhile."""
    drawn = random.SystemRandom()
    while True:
        port = drawn.randrange(*RANGE)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def refused() -> Iterator[tuple[str, int]]:
    """Hold an address of this machine at which nobody listens: it is taken, and refuses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()
