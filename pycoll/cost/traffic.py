"""Traffic: what one call sends over each link of a described cluster, and which link has most."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.cost.machine import Machine
from pycoll.cost.timing import lengths_of, moved, whole_ranks
from pycoll.cost.work import Work, whole_work_of
from pycoll.schedule import Algorithm
from pycoll.schedule.placement import Placement
from pycoll.topology import Link


class Load(NamedTuple):
    """What one call sends over a link, one way."""

    link: Link
    nbytes: float

    @property
    def seconds(self) -> float:
        """Return the least time that the link needs for it."""
        return self.nbytes / self.link.bandwidth


def traffic(work: Work, nbytes: int, machine: Machine) -> list[Load]:
    """Return the load of every link that one call of ``nbytes`` uses.

    Messages count as if all were cut over their routes; short ones go by one of them, and about
    as many by each.
    """
    if machine.topology is None:
        return []
    lengths = lengths_of(work.nchunks, nbytes)
    sent = [0.0] * len(work.edges)
    for operation in work.operations:
        for edge in operation.destinations:
            sent[edge] += moved(operation, lengths)
    senders = [work.sender(edge) for edge in work.edges]
    loads: dict[Link, float] = {}
    for (to, _, _), sender, total in zip(work.edges, senders, sent, strict=True):
        for route in machine.routes(sender, to):
            for link in route.links:
                loads[link] = loads.get(link, 0.0) + total * route.share
    return [Load(link, total) for link, total in loads.items()]


def busiest_of(
    algorithm: Algorithm, nbytes: int, machine: Machine, placement: Placement
) -> Load | None:
    """Return the link that needs the most time in one call; None where there are too many ranks."""
    if machine.size <= whole_ranks(machine):
        return busiest(whole_work_of(algorithm, machine.size, placement), nbytes, machine)
    return None


def busiest(work: Work, nbytes: int, machine: Machine) -> Load | None:
    """Return the link that needs the most time; of equals rather one outside of the nodes."""

    def busy(load: Load) -> tuple[float, bool]:
        return float(f"{load.seconds:.6g}"), "/" not in load.link.b

    return max(traffic(work, nbytes, machine), key=busy, default=None)
