"""Turns: the ranks of a host lower long Programs as many at a time as it has cores.

To lower thousands of instructions takes megabytes for the time that it takes. A thousand ranks that
did so at once would take all memory of their host, and no less time.

A turn is the name of a socket, of which the kernel gives each to one process, takes it back when
that ends however it ends, and leaves no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import time
from collections.abc import Iterator

#: Steps of a rank from which on its Program is long.
LONG = 512
#: Seconds between two tries, of which each rank takes some part: among many, one soon tries.
_PAUSE_SECONDS = 0.4
#: Seconds after which a rank goes on without: who has the turn may have been stopped.
PATIENCE_SECONDS = 120.0


class Turns:
    """Those of one job on this host.

    Args:
        secret: The job's.
        count: How many there are.
    """

    def __init__(self, secret: bytes, count: int) -> None:
        self._name = hashlib.blake2b(b"turn" + secret, digest_size=16).hexdigest()
        self._count = count

    @contextlib.contextmanager
    def take(self, patience: float = PATIENCE_SECONDS) -> Iterator[bool]:
        """Have a turn while the body runs; tell it whether there was one in time."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
            until = time.monotonic() + patience
            while not (got := any(self._bind(held, number) for number in range(self._count))):
                if time.monotonic() >= until:
                    break
                time.sleep(random.uniform(0.1, 1.0) * _PAUSE_SECONDS)
            yield got

    def _bind(self, held: socket.socket, number: int) -> bool:
        try:
            held.bind(f"\0pycoll {self._name} {number}")
        except OSError:  # another rank has it
            return False
        return True
