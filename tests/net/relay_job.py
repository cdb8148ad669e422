"""One rank whose data connections go through a relay, which puts a pickle in place of another.

Says what its calls came to, by line. Its argument is a file that the relay's pickle would make.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import pycoll
from pycoll.runtime.net import connections as links

PLAIN = "a harmless object " * 20


class Evil:
    """A pickle that leaves a file behind wherever it is loaded."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(sys.argv[1]),)


HONEST = pickle.dumps(PLAIN, protocol=5)
FORGED = pickle.dumps(Evil(), protocol=5).ljust(len(HONEST), b".")


def carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end may go away
        while data := source.recv(1 << 20):
            sink.sendall(data.replace(HONEST, FORGED))
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def serve(listener: socket.socket, where: tuple[str, int]) -> None:
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(where)
        for ends in ((near, far), (far, near)):
            threading.Thread(target=carry, args=ends, daemon=True).start()


def address(peer: int, blob: bytes) -> tuple[str, int]:
    """Lead a connection that this rank makes through the relay."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, found(peer, blob)), daemon=True).start()
    return "127.0.0.1", listener.getsockname()[1]


found, links.address = links.address, address


def main() -> None:
    assert len(HONEST) > 300
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        comm = pycoll.init(timeout=60)
    for warning in heard:
        print("warned", warning.message)
    print("sum", comm.allreduce(np.ones(1))[0])
    try:
        print("got", comm.broadcast_object(PLAIN) == PLAIN)
        comm.barrier()
    except pycoll.PycollError as error:
        print(type(error).__name__, error)
    print("end", flush=True)


if __name__ == "__main__":
    main()
