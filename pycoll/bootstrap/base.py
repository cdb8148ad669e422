"""Bootstrap: who am I, who are the others, and small blobs to and from all of them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence

from pycoll.bootstrap import route
from pycoll.bootstrap.control import Control, Exchange
from pycoll.bootstrap.control_plane import ControlPlane
from pycoll.bootstrap.member import Member
from pycoll.bootstrap.reasons import CLOSED
from pycoll.bootstrap.rendezvous import Star


class Gathering:
    """An allgather that has begun."""

    def __init__(self, control: Control, exchange: Exchange, key: str, timeout: float) -> None:
        self._control, self._exchange = control, exchange
        self._key, self._timeout = key, timeout

    def done(self) -> bool:
        """Tell whether `finish` returns or raises at once."""
        return self._exchange.done.is_set()

    def finish(self) -> list[bytes]:
        """Return every rank's blob once all have come."""
        return self._control.finish(self._exchange, self._key, self._timeout)


class Bootstrap:
    """Ranks that have met: a job, or a group of its ranks.

    How they found each other is `name`; nothing else differs.
    """

    def __init__(
        self,
        name: str,
        star: Star,
        timeout: float,
        control: Control | None = None,
        key: str = "",
    ) -> None:
        if star.public and star.rank == 0 and control is None:
            warnings.warn(
                f"{name} hands out no secret, and some host lacks this one's key: anybody who "
                "reaches rank 0 over the network could have joined as a rank. Objects (pickles) "
                "are refused. Set PYCOLL_SECRET to the same output of `openssl rand -hex 32` on "
                "every rank",
                RuntimeWarning,
                stacklevel=2,
            )
        #: "mpi4py", "slurm", "torchrun", "environment", "spawn", "join" or "single"
        self.name = name
        #: Deaths, aborts and statuses; its `attach` may be called once.
        self.control = control or Control(ControlPlane(star, timeout))
        self.rank = self.control.rank
        self.size = self.control.size
        self.members: tuple[Member, ...] = self.control.members
        self.whole = not self.control.number  #: the job, not a group of it
        #: What people call these ranks, alike on all of them.
        self.label = "job" if self.whole else f"{key} #{self.control.number:x}"
        self.secret = self.control.secret  #: a key that only these ranks know
        self.public = star.public  #: anybody could have joined: no pickle can be trusted
        self._star = star
        self._timeout = timeout
        self._numbers = itertools.count()
        host = self.members[self.rank].host
        near = [rank for rank, member in enumerate(self.members) if member.host == host]
        self.local_rank = near.index(self.rank)
        self.local_size = len(near)

    def group(self, ranks: Sequence[int], key: str) -> Bootstrap:
        """Return the same for some of these ranks, by the same control plane, without waiting.

        Args:
            ranks: In the order that they get in the group; each of them, and nobody else, calls
                this with the same arguments.
            key: Given to no earlier group of the same ranks.
        """
        control = self.control.group(ranks, key)
        return Bootstrap(self.name, self._star, self._timeout, control, key)

    def allgather(self, blob: bytes, timeout: float | None = None) -> list[bytes]:
        """Give every rank's blob to every rank; every rank calls it in the same order.

        Args:
            blob: At most 1 MiB.
            timeout: Seconds; the job's timeout by default.
        """
        return self.begin(blob, timeout).finish()

    def begin(
        self, blob: bytes, timeout: float | None = None, notice: Callable[[], None] | None = None
    ) -> Gathering:
        """Begin an allgather; ``notice`` is called, on any thread, just before it is done."""
        key = f"bootstrap {next(self._numbers)}"
        seconds = self._timeout if timeout is None else timeout
        exchange = self.control.begin(key, blob, seconds, notice)
        return Gathering(self.control, exchange, key, seconds)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has come here."""
        self.allgather(b"", timeout)

    def describe(self, rank: int) -> str:
        """Return "rank 3 (process 4711 on node7)", for messages."""
        return self.control.describe(rank)

    def check(self) -> None:
        """Raise what keeps these ranks from meeting any more, if anything does."""
        self.control.check()

    def address(self, iface: str | None = None) -> str:
        """Return the address at which ranks on other hosts reach this process.

        Args:
            iface: PYCOLL_IFACE; by default the network by which the ranks have met.
        """
        return route.named(iface) if iface else route.found(self._star.members, self._star.rank)

    def close(self, calls: int = 0, *, reason: str = CLOSED) -> None:
        """Leave these ranks; see `Control.close`."""
        self.control.close(calls, reason=reason)
