"""Arenas: which ranks share memory, and when each is mapped.

Up to `room.EAGER` ranks each maps all others as it joins. Where there are more, that would be a
system call or two for every two ranks, and page tables; most never exchange a message. So each rank
then tries a few, and maps any other when a plan or a message first needs it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pycoll.runtime.native import bindings


class Arenas:
    """The memory of one rank's peers.

    Args:
        comm: The native communicator.
        near: The addresses of peers that can be mapped and are not yet.
    """

    def __init__(self, comm: Any, near: Mapping[int, bytes]) -> None:
        self._comm = comm
        self._near = dict(near)
        self._guard = threading.Lock()  # transfers are begun by any thread

    def require(self, peers: Iterable[int]) -> None:
        """Return once every one of these ranks that shares memory is mapped.

        Raises:
            PycollError: One cannot be mapped; the communicator can be used no more.
        """
        if not self._near:
            return
        with self._guard:
            for peer in sorted(self._near.keys() & set(peers)):
                bindings.comm_map(self._comm, peer, self._near[peer])
                del self._near[peer]


def domain(host: str) -> str:
    """Return what must be equal for two processes to open each other's memory.

    Args:
        host: Where this one runs.
    """
    try:
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net")]
    except OSError:  # without /proc nobody opens it
        spaces = [-os.getpid()]
    return f"{host} {os.getuid()} {spaces}"


def attempts(rank: int, domain: Sequence[int]) -> set[int]:
    """Return whom a rank tries to map, of the ranks that may share its memory.

    That is the first of them and the rank's neighbours in their circle. What a rank may open of
    another depends on who opens (user, namespaces, privileges) and on who is opened (the same, and
    whether the process may be traced), not on the pair. A circle tries every rank in both roles
    with two others, and the first with all: if all of that works, all pairs do. A pair that a
    security module keeps apart all the same is told by the error of its first message.
    """
    at, n = domain.index(rank), len(domain)
    return {domain[0], domain[at - 1], domain[(at + 1) % n]} - {rank}
