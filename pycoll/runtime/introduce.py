"""What is said once of each communicator that is made: its version, settings, ranks and hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from pycoll import log
from pycoll.errors import counted
from pycoll.runtime.native import load

if TYPE_CHECKING:
    from pycoll.bootstrap import Bootstrap
    from pycoll.config import Config
    from pycoll.runtime.join import World

#: Hosts, or runs of ranks, that a line lists.
_MOST = 8


def introduce(bootstrap: Bootstrap, world: World, config: Config) -> None:
    """Say who the ranks are, and by what they will go."""
    rank = world.rank
    if not bootstrap.whole:
        if rank == 0:
            ranks = _runs(bootstrap.control.ranks)
            many = counted(world.size, "rank")
            log.info("group", "%s: %s, %s of the job", bootstrap.label, many, ranks)
        return
    if rank == 0:
        build = f"{load.compiler()}, {load.cpu_features()}; Python {sys.version.split()[0]}"
        log.info("bootstrap", "pycoll %s, engine by %s", load.version(), build)
        log.info("bootstrap", "%s on %s", counted(world.size, "rank"), _hosts(bootstrap))
    given = [f"{name}={value}" for name, value, origin, _ in config.rows() if origin != "default"]
    if given:
        log.info("bootstrap", "rank %d: settings %s", rank, ", ".join(given))


def _hosts(bootstrap: Bootstrap) -> str:
    """Return how many hosts there are, and which, each with its ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, member in enumerate(bootstrap.members):
        ranks.setdefault(member.host, []).append(rank)
    shown = [
        f"{host.partition('/')[0]} ({_runs(there)})" for host, there in list(ranks.items())[:_MOST]
    ]
    return f"{counted(len(ranks), 'host')}: {_and_more(shown, len(ranks))}"


def _runs(ranks: Iterable[int]) -> str:
    """Return ranks such as "0-3, 8, 10-11"."""
    runs = []
    for _, pairs in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        numbers = [rank for _, rank in pairs]
        runs.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}")
    return _and_more(runs[:_MOST], len(runs))


def _and_more(shown: list[str], count: int) -> str:
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")
