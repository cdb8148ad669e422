"""File descriptors that ranks of one host hand to each other, whichever processes they are in."""

from __future__ import annotations

import array
import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from pycoll.errors import UnavailableError

_SECRET = 16  #: bytes that a rank must know to be given descriptors
_MOST = 16  #: descriptors of one rank
_HELLO = struct.Struct(f"<{_SECRET}sI")


def exchange(
    rank: int,
    peers: Sequence[int],
    mine: Sequence[int],
    gather: Callable[[str], Sequence[bytes]],
    timeout: float,
) -> dict[int, list[int]]:
    """Give every peer copies of some descriptors, and return theirs, to be closed by the caller.

    Args:
        rank: This rank.
        peers: All others, of the same host, who call it as well.
        mine: What they get.
        gather: All-gathers a text among the ranks; called once, whatever goes wrong here.
        timeout: Seconds to wait for each of them.

    Raises:
        UnavailableError: They cannot be passed between these processes.
    """
    with contextlib.ExitStack() as stack:
        name, secret, failure = "", secrets.token_bytes(_SECRET), ""
        try:
            listening = stack.enter_context(_socket(timeout))
            listening.bind("\0" + (name := f"pycoll-{secrets.token_hex(16)}"))
            listening.listen(len(peers))
        except OSError as error:
            failure = f"rank {rank} cannot listen for file descriptors: {error}"
        said = [json.loads(blob) for blob in gather(json.dumps([name, secret.hex(), failure]))]
        if failures := [lack for _, _, lack in said if lack]:
            raise UnavailableError("; ".join(failures))
        where = {peer: (said[peer][0], bytes.fromhex(said[peer][1])) for peer in peers}
        try:
            ways = {peer: stack.enter_context(_socket(timeout)) for peer in peers}
            for peer, (their_name, their_secret) in where.items():
                ways[peer].connect("\0" + their_name)  # which the peer need not have accepted
                ways[peer].sendall(_HELLO.pack(their_secret, rank))
            _give(listening, set(peers), mine, secret, timeout)
            return _take(ways)
        except OSError as error:
            raise UnavailableError(
                f"rank {rank} cannot pass file descriptors to its peers: {error}"
            ) from error


def _socket(timeout: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout)
    return made


def _give(
    listening: socket.socket, waiting: set[int], mine: Sequence[int], secret: bytes, timeout: float
) -> None:
    """Send descriptors to each peer that comes; who does not know the secret is none."""
    while waiting:
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(timeout)
            hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            if len(hello) < _HELLO.size:
                continue
            known, peer = _HELLO.unpack(hello)
            if hmac.compare_digest(known, secret) and peer in waiting:
                socket.send_fds(connection, [bytes([len(mine)])], list(mine))
                waiting.discard(peer)


def _recv_fds(way: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a byte and descriptors, which no process that is started meanwhile inherits.

    `socket.recv_fds` ignores its flags up to Python 3.11 at least.
    """
    fds = array.array("i")
    room = socket.CMSG_LEN(_MOST * fds.itemsize)
    count, ancillary, _, _ = way.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return count, list(fds)


def _take(ways: Mapping[int, socket.socket]) -> dict[int, list[int]]:
    """Receive what each peer sends."""
    taken: dict[int, list[int]] = {}
    try:
        for peer, way in ways.items():
            count, fds = _recv_fds(way)
            taken[peer] = fds
            if list(count) != [len(fds)]:
                raise OSError(f"{len(fds)} descriptors of rank {peer} came, want {list(count)}")
    except BaseException:
        close(fd for fds in taken.values() for fd in fds)
        raise
    return taken


def close(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
