"""Grown: how the ranks of a communicator and newcomers meet, as the ranks of another job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from pycoll.bootstrap import lobby, rendezvous, route
from pycoll.bootstrap.base import Bootstrap
from pycoll.bootstrap.lobby import Lobby, Ticket
from pycoll.bootstrap.rendezvous import GRACE_SECONDS, Star
from pycoll.errors import BootstrapError, CollectiveTimeout, PeerLostError, UsageError

#: What rank 0 may say in place of where to meet.
_ERRORS = {kind.__name__: kind for kind in (BootstrapError, CollectiveTimeout, UsageError)}


def meet(
    old: Bootstrap, count: int, address: str, secret: bytes, version: str, seconds: float
) -> Star:
    """Meet newcomers; every rank calls it, and keeps its number.

    Args:
        old: The ranks; a group that nobody else uses.
        count: How many newcomers there shall be.
        address: Where rank 0 waits for them.
        secret: See `lobby.secret`.
        version: Of pycoll.
        seconds: How long the newcomers may take, and the ranks once these are there.

    Raises:
        CollectiveTimeout: Too few newcomers came.
        BootstrapError: Rank 0 cannot listen.
        UsageError: The address is of use only on this machine, and a rank is on another.
        PeerLostError: A rank, or a newcomer with a ticket, is gone, or did not come to the meeting.
    """
    if old.rank:
        said = _heard(old.allgather(b"", seconds + GRACE_SECONDS)[0])
        where = [(str(host), int(said["port"])) for host in said["hosts"]]
        key = lobby.meeting_key(secret, bytes.fromhex(said["number"]))
        until = time.monotonic() + seconds
        size = old.size + count
        with _one_kind():
            star = rendezvous.join(where, old.rank, size, key, until, check=old.check)
    else:
        star = _lead(old, count, address, secret, version, seconds)
    return star._replace(public=star.public or old.public)


def _lead(
    old: Bootstrap, count: int, address: str, secret: bytes, version: str, seconds: float
) -> Star:
    size = old.size + count
    with contextlib.ExitStack() as stack:
        try:
            place = lobby.here(lobby.places(address))
            hosts = _hosts(old, place[0])
            listener = stack.enter_context(lobby.listen(place, backlog=4 * count + 64))
            guests = stack.enter_context(Lobby(listener, lobby.lobby_key(secret), version))
            guests.gather(count, time.monotonic() + seconds, old.check)
            meeting = stack.enter_context(rendezvous.listen(place[0], 0, backlog=4 * size + 64))
        except (BootstrapError, CollectiveTimeout, UsageError) as error:
            said = {"error": type(error).__name__, "text": str(error)}
            old.allgather(json.dumps(said).encode(), seconds)
            raise
        number, port = lobby.draw(), meeting.getsockname()[1]
        told = {"hosts": hosts, "port": port, "number": number.hex()}
        old.allgather(json.dumps(told).encode(), seconds)
        guests.admit(count, Ticket(old.size, size, port, old.public, number))

        def check() -> None:
            old.check()
            guests.check()

        key = lobby.meeting_key(secret, number)
        with _one_kind():
            return rendezvous.gather(meeting, size, key, time.monotonic() + seconds, check=check)


@contextlib.contextmanager
def _one_kind() -> Iterator[None]:
    """Raise PeerLostError on every rank for what keeps those from meeting who were all there."""
    try:
        yield
    except BootstrapError as error:
        raise PeerLostError(str(error)) from None


def _hosts(old: Bootstrap, host: str) -> list[str]:
    """Return where the other ranks find rank 0; how it sees them come, newcomers find them."""
    if not route.is_loopback(host):
        return list(dict.fromkeys((host, old.address())))
    far = [rank for rank, member in enumerate(old.members) if member.host != old.members[0].host]
    if far:
        raise UsageError(
            f"grow: the address is {host}, which is reached only from the host of rank 0, and "
            f"{old.describe(far[0])} is on another: give one that all hosts reach"
        )
    return [host]


def _heard(blob: bytes) -> dict[str, Any]:
    """Return where rank 0 meets the others; raise what it raises instead."""
    said: dict[str, Any] = json.loads(blob)
    if "error" in said:
        raise _ERRORS[said["error"]](said["text"])
    return said
