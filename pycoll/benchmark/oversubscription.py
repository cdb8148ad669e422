"""Whether what runs on a host is more than its cores: times are then those of ranks in turns."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pycoll.benchmark.barrier import clock
from pycoll.errors import counted

_LOOKS = 7
_BETWEEN = 0.02  #: seconds


class Location(NamedTuple):
    """Where a rank runs."""

    host: str
    clock: float  #: tells hosts apart: namespaces of one kernel have names of their own
    cores: frozenset[int]  #: on which this rank may run


def location() -> Location:
    """Return where this rank runs."""
    return Location(os.uname().nodename, clock(), frozenset(os.sched_getaffinity(0)))


def foreign() -> int:
    """Return how many processes want a core while this one looks and the other ranks wait."""
    looks = []
    for _ in range(_LOOKS):
        time.sleep(_BETWEEN)
        text = Path("/proc/loadavg").read_text(encoding="ascii")
        looks.append(int(text.split()[3].partition("/")[0]) - 1)  # the one that looks is itself one
    return int(statistics.median(looks))


def warnings(locations: Sequence[Location], others: Sequence[int], cores: int) -> list[str]:
    """Return a sentence for each host that has more to do than cores.

    Args:
        locations: Of all ranks.
        others: For each rank what `foreign` found on its host; 0 for those that did not look.
        cores: Of a host, at most.
    """
    found = []
    for host in dict.fromkeys(where.clock for where in locations):
        here = [i for i, where in enumerate(locations) if where.clock == host]
        name = locations[here[0]].host
        usable = len(frozenset().union(*(locations[i].cores for i in here)))
        busy = max(others[i] for i in here)
        if len(here) > usable:
            found.append(
                f"{len(here)} ranks share {counted(usable, 'core')} of {name}: they take turns, "
                "and times hold the waiting for a core"
            )
        if busy and len(here) + busy > max(usable, cores):
            found.append(
                f"{busy} other {'process wants' if busy == 1 else 'processes want'} a core of "
                f"{name} beside {len(here)} ranks on {counted(usable, 'core')}: times will vary"
            )
    return found


def look(comm: Any) -> list[str]:
    """Look at all hosts before anything is timed; all ranks call this and get the same."""
    locations = [Location(*each) for each in comm.allgather_object(tuple(location()))]
    first = [each.clock for each in locations].index(locations[comm.rank].clock) == comm.rank
    # The others wait in the next call meanwhile, and waiting ranks sleep.
    found = comm.allgather_object(foreign() if first else 0)
    return warnings(locations, found, os.cpu_count() or 1)
