"""Bootstrap: who am I, who are the others, and small blobs to and from all of them."""

from __future__ import annotations

import itertools

from pycoll.bootstrap.control import Control
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.reactor import CLOSED
from pycoll.bootstrap.rendezvous import Star


class Bootstrap:
    """A job whose ranks have met. How they found each other is `name`; nothing else differs."""

    def __init__(self, name: str, star: Star, timeout: float) -> None:
        self.name = name  #: "mpi4py", "torchrun", "environment", "spawn" or "single"
        self.rank = star.rank
        self.size = star.size
        self.members: tuple[Member, ...] = star.members
        self._timeout = timeout
        self._numbers = itertools.count()
        self.control = Control(star)  #: deaths and aborts; its `attach` may be called once
        host = self.members[self.rank].host
        near = [rank for rank, member in enumerate(self.members) if member.host == host]
        self.local_rank = near.index(self.rank)
        self.local_size = len(near)

    def allgather(self, blob: bytes, timeout: float | None = None) -> list[bytes]:
        """Give every rank's blob to every rank; every rank calls it in the same order.

        Args:
            blob: At most 1 MiB.
            timeout: Seconds; the job's timeout by default.
        """
        key = f"bootstrap {next(self._numbers)}"
        return self.control.exchange(key, blob, self._timeout if timeout is None else timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has come here."""
        self.allgather(b"", timeout)

    def describe(self, rank: int) -> str:
        """Return "rank 3 (process 4711 on node7)", for messages."""
        return f"rank {rank} ({self.members[rank]})"

    def close(self, calls: int = 0, *, reason: str = CLOSED) -> None:
        """Close the control plane; see `Control.close`."""
        self.control.close(calls, reason=reason)
