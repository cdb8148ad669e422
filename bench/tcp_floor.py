"""The floor of an all-reduce over TCP: tcp_floor.c, over sockets of its own between the ranks."""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pycoll.bootstrap.connection import avoid_bbr

SOURCE = Path(__file__).with_suffix(".c")
#: Each with the smallest count of elements for a rank that it takes.
PATTERNS = {"doubling": 0, "halving": 1, "ring": 1}
#: How often a rank that has to wait yields before it sleeps.
YIELDS = (0, 40)


@functools.cache
def _load() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "floor.so")
        command = [os.environ.get("CC", "cc"), "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(built), str(SOURCE)], check=True)
        return ctypes.CDLL(str(built), use_errno=True)


class Floor:
    """Sockets to every other rank, and the patterns that run over them."""

    def __init__(self, world: Any, address: str) -> None:
        """Join all ranks of an mpi4py communicator by a socket for each pair.

        Args:
            world: The communicator; its size is a power of two.
            address: This rank's, at which the others reach it.
        """
        self.rank, self.size = world.rank, world.size
        with socket.create_server((address, 0), backlog=self.size) as server:
            avoid_bbr(server)  # the same sockets as pycoll's
            addresses = world.allgather(server.getsockname())
            self._sockets: dict[int, socket.socket] = {}
            for peer in range(self.rank):
                self._sockets[peer] = socket.socket()
                avoid_bbr(self._sockets[peer])
                self._sockets[peer].connect(addresses[peer])
                self._sockets[peer].sendall(bytes([self.rank]))
            for _ in range(self.rank + 1, self.size):
                one, _ = server.accept()
                self._sockets[one.recv(1)[0]] = one
        for one in self._sockets.values():
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = (ctypes.c_int * self.size)(
            *(self._sockets[p].fileno() if p in self._sockets else -1 for p in range(self.size))
        )

    def call(self, pattern: str, x: np.ndarray, yields: int) -> Callable[[], None]:
        """Return what all-reduces `x` (float32) in place; OSError if a socket fails."""
        function = getattr(_load(), f"floor_{pattern}")
        spare = np.empty_like(x)
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (x, spare)]
        arguments = (self._numbers, self.rank, self.size, *pointers)
        arguments = (*arguments, ctypes.c_size_t(x.size), yields)

        def call(keep: Any = (x, spare)) -> None:
            if function(*arguments) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

        return call

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets.values():
            one.close()
