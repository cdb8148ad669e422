"""What strangers do to listening ports: `strangers.py RECORDING ADDRESS...`, run on a host.

All of them come at once. Ends when the other side has closed every connection, and prints how many
there were. RECORDING is a file with what clients of the job have said (see recorder.py).
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 60
RESET = struct.pack("ii", 1, 0)


def lengths() -> Iterator[bytes]:
    """Beginnings that announce far more than will come, in every width and order of bytes."""
    for order in ("little", "big"):
        for width in (2, 4, 8):
            yield (2 ** (8 * width) - 1).to_bytes(width, order) * 64
        yield (1 << 32).to_bytes(8, order) * 64


def sayings(recording: list[str]) -> Iterator[bytes]:
    """Yield what strangers say; the first one says nothing."""
    chance = random.Random(5)
    yield from (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    yield from (chance.randbytes(count) for count in (1, 100, 100_000))
    yield from lengths()
    for said in map(bytes.fromhex, recording):
        yield said
        yield said[: len(said) // 2]
        flipped = bytearray(said)
        flipped[len(said) // 2] ^= 1
        yield bytes(flipped)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.create_connection((host, int(port)), SECONDS)
    peer.setblocking(False)
    return peer


def main() -> None:
    recording, *addresses = sys.argv[1:]
    said = json.loads(Path(recording).read_text())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    made = 0
    with selectors.DefaultSelector() as waiting:
        for address in addresses:
            connect(address).close()  # a port scanner
            with connect(address) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            half = connect(address)
            half.shutdown(socket.SHUT_WR)
            waiting.register(half, selectors.EVENT_READ)
            made += 3
            for saying in sayings(said):
                peer = connect(address)
                # The other end may have closed already, or may not want all of it.
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    peer.sendall(saying)
                waiting.register(peer, selectors.EVENT_READ)
                made += 1
        deadline = time.monotonic() + SECONDS
        while waiting.get_map():
            assert time.monotonic() < deadline, f"{len(waiting.get_map())} connections stay open"
            for key, _ in waiting.select(1):
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    if peer.recv(65536):
                        continue
                waiting.unregister(peer)
                peer.close()
    print(made)


if __name__ == "__main__":
    main()
