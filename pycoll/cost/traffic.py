"""Traffic: what one call sends over each link of a described cluster, and which link has most."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.cost.machine import Machine
from pycoll.cost.prediction import lengths_of, moved
from pycoll.cost.work import Work
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
    topology = machine.topology
    if topology is None:
        return []
    lengths = lengths_of(work.nchunks, nbytes)
    sent = [0.0] * len(work.edges)
    for operation in work.operations:
        for edge in operation.destinations:
            sent[edge] += moved(operation, lengths)
    senders = [work.sender(edge) for edge in work.edges]
    loads: dict[Link, float] = {}
    for (to, _, _), sender, total in zip(work.edges, senders, sent, strict=True):
        for route in topology.routes(sender, to, machine.flows):
            for link in route.links:
                loads[link] = loads.get(link, 0.0) + total * route.share
    return [Load(link, total) for link, total in loads.items()]


def busiest(work: Work, nbytes: int, machine: Machine) -> Load | None:
    """Return the link that needs the most time; of equals rather one outside of the nodes."""

    def busy(load: Load) -> tuple[float, bool]:
        return float(f"{load.seconds:.6g}"), "/" not in load.link.b

    return max(traffic(work, nbytes, machine), key=busy, default=None)
