"""The ranks of `pycoll run --elastic`: one that dies is replaced, and the others go on."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from pycoll.bootstrap import newcomer, torchrun
from pycoll.bootstrap.processes import Interpreters, Started
from pycoll.bootstrap.ranks import Rank, Ranks
from pycoll.config import SETTINGS
from pycoll.errors import counted

_VARIABLES = {setting.name: setting.variable for setting in SETTINGS}


class Replaceable(Interpreters):
    """Starts ranks that find newcomers at a port of their own, and newcomers in their places."""

    def __init__(self, command: Sequence[str], size: int, soft: int) -> None:
        super().__init__(command, size, soft)
        # As with the port of torch's store: nobody else is given it, and rank 0 may listen there.
        self._lobby = socket.socket()
        self._lobby.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._lobby.bind(("127.0.0.1", 0))

    def variables(self, rank: int) -> dict[str, str]:
        """See `Starter`; where the job grows, too."""
        address = f"127.0.0.1:{self._lobby.getsockname()[1]}"
        return {**super().variables(rank), _VARIABLES["join_address"]: address}

    def replace(self, rank: int, restarts: int) -> tuple[Started, int]:
        """Start a process in the place of a rank; return it, and where it says that it has joined.

        Args:
            rank: The number that the dead one had at its start; the new one may get another.
            restarts: How many there have been, this one included.
        """
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        environ = {
            **self.variables(rank),
            **torchrun.restarted(restarts),
            _VARIABLES["newcomer"]: newcomer.pipe_word(writer),
        }
        try:
            return self.begin(environ, writer), reader
        finally:
            os.close(writer)

    def close(self) -> None:
        """Give back the ports."""
        self._lobby.close()
        super().close()


class ElasticRanks(Ranks):
    """As `Ranks`, but a rank that dies ends the job only if too few are left.

    Args:
        starter: What starts them; closed in the end.
        grace: As `Ranks` takes it.
        least: How many ranks must live, or have ended well.
        restarts: How many processes may be started in place of others, in all.
    """

    def __init__(self, starter: Replaceable, grace: float, least: int, restarts: int) -> None:
        super().__init__(starter, grace)
        self._replaceable, self._least, self._most = starter, least, restarts
        self._restarts = 0
        self._missing = starter.size  #: of the first ranks, those that have not been started
        self._forgiven: list[Rank] = []
        self._waiting: dict[Rank, int] = {}  # has not joined yet → where it says that it has

    def wait(self, signals: int) -> int:
        """See `Ranks`."""
        try:
            return super().wait(signals)
        finally:
            for fd in self._waiting.values():
                os.close(fd)

    def _start(self, number: int) -> bool:
        self._missing -= 1
        return super()._start(number)

    def _decide(self) -> None:
        if self._sent or self._steps or self._told is not None:
            super()._decide()
            return
        self._hear()
        ended = [rank for rank in self._ranks if rank.code == 0]
        members = [rank for rank in self._running() if rank not in self._waiting]
        living = len(ended) + len(members) + self._missing
        died, self._failed = self._failed, []
        if died and living < self._least:
            self._few(died, living)
        for rank in died if not self._failed else ():
            self._forgiven.append(rank)
            goes_on = f"rank {rank.number} (process {rank.process.pid}) {rank.fate}"
            self._say(f"{goes_on}; {self._replace(rank, living, bool(ended))}")
        if ended and not members and not self._missing and self._running():
            self._over()
        super()._decide()

    def _hear(self) -> None:
        """Note which of those who were started late have joined, or ended."""
        for rank, fd in [*self._waiting.items()]:
            try:
                over = bool(os.read(fd, 1)) or rank.code is not None
            except BlockingIOError:
                over = False
            if over:
                del self._waiting[rank]
                os.close(fd)

    def _few(self, died: list[Rank], living: int) -> None:
        self._failed = [*died, *reversed(self._forgiven)]
        self._say(f"{counted(living, 'rank')} left, want at least {self._least}: the job ends")

    def _replace(self, rank: Rank, living: int, ending: bool) -> str:
        """Start a process in place of a rank, if that is of use; return what is done."""
        go_on = f"{counted(living, 'rank')} left"
        if ending:
            return f"{go_on}, and no replacement is started: the job is ending"
        if self._restarts == self._most:
            return f"{go_on}, and no replacement is started: there have been {self._most}"
        self._restarts += 1
        started, reader = self._replaceable.replace(rank.number, self._restarts)
        self._waiting[self._add(rank.number, started)] = reader
        return f"{go_on}, and replacement {self._restarts} of at most {self._most} is started"

    def _over(self) -> None:
        """End those who still wait to join: whoever might have let them in has ended well."""
        self._steps = [*self.ENDING]
        self._step()
