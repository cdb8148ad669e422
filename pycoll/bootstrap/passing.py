"""File descriptors that ranks of one host hand to each other, whichever processes they are in."""

from __future__ import annotations

import array
import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pycoll.errors import UnavailableError

_SECRET = 16  #: bytes that a rank must know to be given descriptors
_MOST = 16  #: descriptors of one rank
_HELLO = struct.Struct(f"<{_SECRET}sI")
_CREDENTIALS = struct.Struct("iII")  #: of SO_PEERCRED: process, user, group
#: Connections that have not said who they are; with one more the oldest is dropped.
_MOST_STRANGERS = 64
_PAUSE = 0.01  #: seconds between two looks for room at a peer's socket


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
            listening.listen(len(peers) + _MOST_STRANGERS)
        except OSError as error:
            failure = f"rank {rank} cannot listen for file descriptors: {error}"
        mine_said = [name, secret.hex(), failure, os.getpid(), _numbering()]
        said = [json.loads(blob) for blob in gather(json.dumps(mine_said))]
        if failures := [one[2] for one in said if one[2]]:
            raise UnavailableError("; ".join(failures))
        where = {peer: (said[peer][0], bytes.fromhex(said[peer][1])) for peer in peers}
        # Where processes are numbered otherwise the number says nothing.
        known = {p: said[p][3] if said[p][4] == mine_said[4] != "" else None for p in peers}
        ways: dict[int, socket.socket] = {}
        stack.callback(lambda: _close_all(ways.values()))
        try:
            with _Door(listening, known, mine, secret) as door:

                def come(peer: int) -> None:
                    their_name, their_secret = where[peer]
                    if peer in ways:
                        ways.pop(peer).close()
                    ways[peer] = door.connect("\0" + their_name, timeout)
                    if not _is_process(ways[peer], known[peer]):
                        raise OSError(f"another process than that of rank {peer} listens")
                    with contextlib.suppress(ConnectionError):  # `_take` finds that
                        ways[peer].sendall(_HELLO.pack(their_secret, rank))

                for peer in peers:
                    come(peer)
                door.serve(timeout)
                return _take(ways, come, timeout)
        except OSError as error:
            raise UnavailableError(
                f"rank {rank} cannot pass file descriptors to its peers: {error}"
            ) from error


def _socket(timeout: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout)
    return made


def _numbering() -> str:
    """Return what numbers this process: its namespace; "" if that cannot be told."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_process(connection: socket.socket, pid: int | None) -> bool:
    """Tell whether this user's process is at the other end, and, if its number is known, which."""
    size = _CREDENTIALS.size
    found, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return user == os.geteuid() and pid in (None, found)


class _Door:
    """Sends descriptors to each peer that comes. Nobody else is given any, or delays a peer.

    Args:
        listening: Where they come.
        known: The peers, and the numbers of their processes where these are known.
        mine: The descriptors.
        secret: What a peer has to say.
    """

    def __init__(
        self,
        listening: socket.socket,
        known: Mapping[int, int | None],
        mine: Sequence[int],
        secret: bytes,
    ) -> None:
        self._listening, self._known, self._mine, self._secret = listening, known, mine, secret
        self._waiting = set(known)
        self._said: dict[socket.socket, bytes] = {}  #: by each that came, the oldest first
        self._ready = selectors.DefaultSelector()

    def __enter__(self) -> _Door:
        self._listening.setblocking(False)
        self._ready.register(self._listening, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self._said):
            self._drop(connection)
        self._ready.close()

    def serve(self, timeout: float) -> None:
        """Return once all peers have come; TimeoutError if none of them does for so long."""
        until = time.monotonic() + timeout
        while self._waiting:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"ranks {sorted(self._waiting)} did not come in {timeout:g} s")
            if self._step(left):
                until = time.monotonic() + timeout

    def connect(self, name: str, timeout: float) -> socket.socket:
        """Connect to a peer. Whose door is crowded may be waiting for room at this one."""
        until = time.monotonic() + timeout
        way = _socket(timeout)
        try:
            way.setblocking(False)
            while True:
                try:
                    way.connect(name)
                    break
                except BlockingIOError as error:  # as many as may wait to be accepted there do
                    if time.monotonic() > until:
                        raise TimeoutError(f"no room at its socket in {timeout:g} s") from error
                    self._step(_PAUSE)
            way.settimeout(timeout)
        except BaseException:
            way.close()
            raise
        return way

    def _step(self, seconds: float) -> bool:
        """Take what comes within so long; tell whether a peer was among those that came."""
        served = False
        for key, _ in self._ready.select(seconds):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._said:
                served = self._hear(key.fileobj) or served
        return served

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone again
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            self._said[connection] = b""
            self._ready.register(connection, selectors.EVENT_READ)
            if not _is_process(connection, None):
                self._drop(connection)
            elif len(self._said) > len(self._known) + _MOST_STRANGERS:
                oldest = next(iter(self._said))
                self._hear(oldest)  # a peer may have said who it is meanwhile
                if oldest in self._said:
                    self._drop(oldest)

    def _hear(self, connection: socket.socket) -> bool:
        """Take what was said; tell whether it was a peer, which then has what it wants."""
        said = self._said[connection]
        try:
            more = connection.recv(_HELLO.size - len(said))
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        said += more
        if more and len(said) < _HELLO.size:
            self._said[connection] = said
            return False
        served = False
        if len(said) == _HELLO.size:
            known, peer = _HELLO.unpack(said)
            served = hmac.compare_digest(known, self._secret) and peer in self._waiting
            if served and _is_process(connection, self._known[peer]):
                # There is room for them: nothing was sent before.
                socket.send_fds(connection, [bytes([len(self._mine)])], list(self._mine))
                self._waiting.discard(peer)
            else:
                served = False
        self._drop(connection)
        return served

    def _drop(self, connection: socket.socket) -> None:
        del self._said[connection]
        self._ready.unregister(connection)
        connection.close()


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


def _take(
    ways: Mapping[int, socket.socket], come: Callable[[int], None], timeout: float
) -> dict[int, list[int]]:
    """Receive what each peer sends.

    Who was slow to say who it is may have been sent away as a stranger, where many came: it comes
    again, to a peer that waits for it.
    """
    taken: dict[int, list[int]] = {}
    until = time.monotonic() + timeout
    try:
        for peer in list(ways):
            while peer not in taken:
                count, fds = b"", list[int]()
                with contextlib.suppress(ConnectionError):
                    count, fds = _recv_fds(ways[peer])
                if count:
                    taken[peer] = fds
                    if list(count) != [len(fds)]:
                        raise OSError(
                            f"{len(fds)} descriptors of rank {peer} came, want {list(count)}"
                        )
                elif time.monotonic() > until:
                    raise TimeoutError(f"rank {peer} sends nothing in {timeout:g} s")
                else:
                    time.sleep(_PAUSE)
                    come(peer)
    except BaseException:
        close(fd for fds in taken.values() for fd in fds)
        raise
    return taken


def _close_all(ways: Iterable[socket.socket]) -> None:
    """Close connections."""
    for way in ways:
        way.close()


def close(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
