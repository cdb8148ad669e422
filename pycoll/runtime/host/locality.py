"""Locality: where a rank runs, as it tells the others, and what follows from everyone's."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from pycoll.schedule.placement import Level, Placement
from pycoll.sysfs import HOST, NUMA, Sysfs, boot_id

NOWHERE = -1  #: of a rank whose processors do not all lie at one memory


class Locality(NamedTuple):
    """The machine, the memory and the processors that a rank may use."""

    host: str  #: boot id: equal for two ranks of one kernel, whatever their containers are called
    memory: int  #: number of the NUMA node that all its processors belong to, or NOWHERE
    cpus: int  #: a bit for each; there may be hundreds, of hundreds of ranks

    @classmethod
    def mine(cls) -> Locality:
        """Describe this process."""
        # Without /proc it is alone, as far as can be told.
        host = boot_id() or f"{os.uname().nodename}/{os.getpid()}"
        cpus = os.sched_getaffinity(0)
        return cls(host, memory_of(cpus), sum(1 << cpu for cpu in cpus))

    def encode(self) -> dict[str, Any]:
        """Return what JSON can carry."""
        return {"host": self.host, "memory": self.memory, "cpus": f"{self.cpus:x}"}

    @classmethod
    def parse(cls, said: dict[str, Any]) -> Locality:
        """Read what `encode` wrote; ValueError, TypeError or KeyError for anything else."""
        host, memory, text = said["host"], said["memory"], said["cpus"]
        if not isinstance(host, str) or not isinstance(memory, int) or memory < NOWHERE:
            raise ValueError("host or memory")
        if not isinstance(text, str) or len(text) > 4096:
            raise ValueError("cpus")
        cpus = int(text, 16)
        if cpus <= 0:
            raise ValueError("cpus")
        return cls(host, memory, cpus)


def memory_of(cpus: Set[int], host: Sysfs = HOST) -> int:
    """Return the NUMA node that all these processors belong to, or NOWHERE."""
    for name in host.names(NUMA):
        number = name.removeprefix("node")
        if number.isdecimal() and cpus <= (host.ids(f"{NUMA}/{name}/cpulist") or set()):
            return int(number)
    return NOWHERE


def hosts(places: Sequence[Locality]) -> tuple[int, ...]:
    """Return the number of every rank's host, counted in the order of their first ranks."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(place.host, len(numbers)) for place in places)


def cores(places: Sequence[Locality], host: str) -> tuple[int, int]:
    """Return how many cores the ranks of a host may use together, and how many ranks they are."""
    near = [place.cpus for place in places if place.host == host]
    return functools.reduce(operator.or_, near).bit_count(), len(near)


def scarcest(places: Sequence[Locality]) -> int:
    """Return the number of cores of the host that has fewest for each of its ranks."""
    counts = [cores(places, host) for host in sorted({place.host for place in places})]
    return min(counts, key=lambda count: (count[0] / count[1], count))[0]


def placement(places: Sequence[Locality], mapped: Sequence[int]) -> Placement:
    """Return which ranks share memory, and which of those the same NUMA node.

    Args:
        places: Of every rank.
        mapped: Of every rank, the bits of those with whom it shares memory; this holds both ways.
    """
    size = len(places)
    full = (1 << size) - 1
    alike = mapped.count(full) == size  # mostly; the rest takes a step for each
    nodes = [full] if alike else []  # bits
    node_of = [0] * size if alike else []
    for rank in range(len(node_of), size):
        # Whoever is in a node shares memory with everyone in it.
        known = (n for n, node in enumerate(nodes) if not node & ~mapped[rank])
        number = next(known, len(nodes))
        if number == len(nodes):
            nodes.append(0)
        nodes[number] |= 1 << rank
        node_of.append(number)
    memories = [place.memory for place in places]
    anywhere = {n for n, memory in zip(node_of, memories, strict=True) if memory == NOWHERE}
    pairs = [
        (n, 0 if n in anywhere else memory) for n, memory in zip(node_of, memories, strict=True)
    ]
    number_of = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    levels = [Level("node", tuple(node_of))]
    if len(number_of) > len(nodes):
        levels.insert(0, Level("socket", tuple(number_of[pair] for pair in pairs)))
    return Placement.of(*levels)
