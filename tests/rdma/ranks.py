"""A job in a guest: ranks of pycoll spread over hosts, each host with its own NICs."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from command import SECONDS, Command, GuestError
from rack import Rack

ROOT = Path(__file__).resolve().parents[2]
PORT = 29400


class Ranks(list[Command]):
    """The running ranks of a job, by rank; a context manager, at whose end none is left.

    Args:
        rack: Its hosts and NICs.
        argv: What every rank runs. A script of this Python starts in a process that has imported
            pycoll already, unless `cold` is set.
        size: How many ranks.
        hosts: Over how many hosts they are spread, in blocks.
        rails: How many NICs each host has: host i uses i * rails and those after. 0: settings as
            they come.
        env: Variables besides this process's own without those of pycoll.
        stdin: Whether the ranks have a standard input.
        apart: Whether every host has a boot id of its own; see `Rack.on`.
        cold: Whether a script, too, starts as a program of its own.
    """

    def __init__(
        self,
        rack: Rack,
        argv: Sequence[str],
        size: int,
        *,
        hosts: int = 2,
        rails: int = 1,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        apart: bool = False,
        cold: bool = False,
    ) -> None:
        super().__init__()
        if not hosts <= min(size, rack.count) or hosts * rails > rack.nics.count:
            raise ValueError(
                f"{size} ranks on {hosts} hosts with {rails} NICs each; there are {rack.count} "
                f"hosts and {rack.nics.count} NICs"
            )
        self.hosts = [rank * hosts // size for rank in range(size)]  #: of each rank
        guest = rack.guest
        common = {name: value for name, value in os.environ.items() if name[:7] != "PYCOLL_"}
        common |= {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "PYTHONFAULTHANDLER": "1",
            "PYCOLL_SIZE": str(size),
            "PYCOLL_ADDRESS": f"{rack.address(0)}:{PORT}",
            "PYCOLL_SECRET": secrets.token_hex(16),
        }
        for number, host in enumerate(self.hosts):
            own = {"PYCOLL_RANK": str(number)}
            if rails:
                nics = rack.rails(host, rails)
                own["PYCOLL_RAILS"] = ",".join(map(rack.nics.device, nics))
            variables = {**common, **own, **(env or {})}
            if argv[0] == sys.executable and argv[1].endswith(".py") and not cold:
                rank = guest.fork(
                    argv[1:], host=host, apart=apart, cwd=ROOT, env=variables, stdin=stdin
                )
            else:
                command = [*rack.on(host, apart=apart), *argv]
                rank = guest.start(command, cwd=ROOT, env=variables, stdin=stdin)
            self.append(rank)

    def __enter__(self) -> Ranks:
        """Return the ranks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill those that still run."""
        for rank in self:
            if rank.returncode is None:
                rank.kill()
        for rank in self:
            rank.wait()

    def wait(self, timeout: float = SECONDS) -> list[int]:
        """Return the exit status of every rank.

        Args:
            timeout: Seconds for all together, after which those that still run are killed.

        Raises:
            GuestError: A rank had to be killed. The text has what every rank said.
        """
        deadline = time.monotonic() + timeout
        for rank in self:
            try:
                rank.wait(max(0.0, deadline - time.monotonic()))
            except GuestError as error:
                raise GuestError(f"after {timeout:g} seconds: {self.describe()}") from error
        return [rank.returncode or 0 for rank in self]

    def finish(self, timeout: float = SECONDS) -> list[str]:
        """Return what every rank wrote to its standard output, after all ended with 0.

        Raises:
            GuestError: One did not. The text has what every rank said.
        """
        if any(self.wait(timeout)):
            raise GuestError(self.describe())
        return [rank.stdout for rank in self]

    def describe(self) -> str:
        """Return how every rank stands, and all it said."""
        return "\n".join(
            f"rank {number} on host {host}: {rank.describe()}"
            for number, (host, rank) in enumerate(zip(self.hosts, self, strict=True))
        )
