"""The way to other ranks, made when a call first needs them: a mapping, or a connection.

Each rank that has remote peers listens, on the network by which the ranks met or that
PYCOLL_IFACE names. A `Connector` makes and answers the connections; the engine gets the sockets.
Over TCP all that passes goes by them; over RDMA, what its connections need to be made and mended.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from pycoll import log
from pycoll.bootstrap import Bootstrap
from pycoll.bootstrap.connection import avoid_bbr
from pycoll.bootstrap.control_socket import keep_alive
from pycoll.bootstrap.reasons import CLOSED, EXITED
from pycoll.config import Config
from pycoll.errors import BootstrapError, PycollError
from pycoll.runtime.arenas import Arenas
from pycoll.runtime.failure import Failure
from pycoll.runtime.join import World
from pycoll.runtime.native import bindings, verbs
from pycoll.runtime.net.connector import MOST_STRANGERS, SOCKETS, Connector, EventSource
from pycoll.runtime.net.resends import Resends

#: A waiting caller looks this often whether the peer or the communicator is gone.
_SLICE_SECONDS = 0.1


class Connections:
    """The connections of one communicator; nothing at all where every rank is mapped.

    Every rank of a communicator with remote ranks makes one, at the same time.
    """

    def __init__(
        self,
        comm: Any,
        bootstrap: Bootstrap,
        world: World,
        config: Config,
        failure: Failure,
        arenas: Arenas,
    ) -> None:
        self._arenas, self._failure = arenas, failure
        self._remote = {p for p in range(world.size) if not world.mapped[p]}
        self._linked: set[int] = set()
        self._connector: Connector | None = None
        self._failures = self._revivals = 0  #: of connections over RDMA, as far as was told
        self._unshared = False  #: that they do not share receives was told
        self._resends = Resends(world.rails)
        if not world.remote:
            return
        self._comm, self._bootstrap = comm, bootstrap
        self._timeout = config.timeout
        listener = None
        mine = b""
        if self._remote:
            host = bootstrap.address(config.iface)
            listener = listen(host, len(self._remote))
            port = listener.getsockname()[1]
            mine = f"{host} {port}".encode()
            log.info("net", "rank %d: ranks of other hosts come to %s:%d", world.rank, host, port)
        try:
            blobs = bootstrap.allgather(mine, config.timeout)
            self._addresses = {peer: address(peer, blobs[peer]) for peer in self._remote}
        except BaseException:
            if listener:
                listener.close()
            raise
        if listener:
            secret = hmac.digest(bootstrap.secret, b"links", hashlib.sha256)
            fd = bindings.comm_event_fd(comm)
            attention = EventSource(fd, self._attend) if fd >= 0 else None
            self._connector = Connector(
                listener, world.rank, world.size, secret, self._addresses, self._adopt, attention
            )

    def require(self, peers: Iterable[int], timeout: float | None = None) -> None:
        """Return once each of these ranks is mapped, or connected if it is remote.

        Args:
            peers: Ranks of this communicator.
            timeout: Seconds; the communicator's by default.

        Raises:
            PeerLostError: One cannot be reached; the communicator is broken on every rank.
            PycollError: The memory of one cannot be mapped; it is broken just so.
        """
        try:
            self._arenas.require(peers)
        except PycollError as error:
            self._failure.fail(error)
        missing = self._remote.intersection(peers) - self._linked
        if not missing or self._connector is None:
            return
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        self._connector.want(missing, deadline)
        while still := self._connector.wait(missing, _SLICE_SECONDS):
            self._give_up_on_lost(still)
            if time.monotonic() > deadline:
                self._fail(still, seconds)
        self._linked |= missing

    def close(self) -> None:
        """End the thread and give everything back but the sockets that the engine has."""
        if (again := self._resends.told()) and self._connector:
            log.info("net", "rank %d: since it began, by %s", self._bootstrap.rank, again)
        if self._connector:
            self._connector.close()

    def current(self) -> bool:
        """Tell whether the caller is the connections' thread, which cannot wait for its end."""
        return self._connector is not None and self._connector.current()

    def forked(self) -> None:
        """In the child of a fork: let go of the parent's sockets."""
        if self._connector:
            self._connector.forked()

    def _adopt(self, peer: int, sock: socket.socket) -> None:
        keep_alive(sock, self._timeout)
        fd = sock.detach()
        try:
            bindings.comm_adopt(self._comm, peer, fd)
        except PycollError as error:
            # The peer believes that it is connected: another attempt would come too late. First
            # the reason, then the end of the connection, for which the peer would make up one.
            self._failure.refuse_link(peer, f"its connection cannot be used here ({error})")
            os.close(fd)
            raise

    def _attend(self) -> None:
        """See to connections over RDMA that are to be made, that failed or that come back."""
        bindings.comm_handle_events(self._comm)
        state = verbs.comm_net_state(self._comm)
        left = f"{state.live} of {state.connections} carry messages"
        if state.failures > self._failures:
            log.warning("net", "rank %d: an RDMA connection failed; %s", self._bootstrap.rank, left)
        if state.revivals > self._revivals:
            log.info("net", "rank %d: an RDMA connection is back; %s", self._bootstrap.rank, left)
        if state.unshared and not self._unshared:
            log.info(
                "net",
                "rank %d: RDMA connections do not share receives: %s",
                self._bootstrap.rank,
                state.unshared,
            )
        self._failures, self._revivals = state.failures, state.revivals
        self._unshared = bool(state.unshared)

    def _give_up_on_lost(self, still: set[int]) -> None:
        self._failure.raise_failure()
        if code := bindings.comm_broken(self._comm):
            self._failure.raise_for(code, self._timeout)
        for rank, reason in self._bootstrap.control.lost().items():
            # Who left in good order may have done its part of the call; who died breaks it for all.
            if rank in still or reason not in (CLOSED, EXITED):
                self._failure.lose_link(rank, f"no connection to rank {min(still)} was made yet")

    def _fail(self, still: set[int], seconds: float) -> NoReturn:
        assert self._connector is not None
        peer = min(still)
        host, port = self._addresses[peer]
        why = self._connector.problem(peer) or "no answer"
        also = f", nor have {len(still) - 1} ranks more" if len(still) > 1 else ""
        self._failure.lose_link(
            peer, f"it could not be reached at {host}:{port} within {seconds:g} s ({why}){also}"
        )


def listen(host: str, peers: int) -> socket.socket:
    """Listen at an address of this machine, on any port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, 0), family=family, backlog=SOCKETS * peers + MOST_STRANGERS
        )
        avoid_bbr(listener)  # the sockets that it accepts have what it has
        return listener
    except OSError as error:
        raise BootstrapError(
            f"cannot listen at {host} for ranks of other hosts: {error.strerror or error}; "
            "PYCOLL_IFACE names another address"
        ) from error


def address(peer: int, blob: bytes) -> tuple[str, int]:
    """Read where a peer listens."""
    text = blob.decode(errors="replace")
    host, _, port = text.partition(" ")
    if not (0 < len(host) < 64 and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BootstrapError(f"rank {peer} says that it listens at {text[:60]!r}, want host port")
    return host, int(port)
