"""KernelPrice: what operations cost the rank whose kernel does them."""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.cost.kernel import Kernel
from pycoll.cost.machine import Toll
from pycoll.cost.work import Operation, Work
from pycoll.program.isa import MAX_DESTINATIONS, MAX_SOURCES


class KernelPrice:
    """What operations of a call of ``nbytes`` cost.

    Args:
        work: What the ranks do.
        nbytes: Of the call.
        kernel: What limits it.
        hosts: Number of every rank's host; empty: all share one.
    """

    def __init__(self, work: Work, nbytes: int, kernel: Kernel, hosts: tuple[int, ...]) -> None:
        channels = max(map(len, work.streams), default=1)
        self._protocol, self.instances = kernel.shape(nbytes, channels, not hosts)
        self.link = kernel.link / self._protocol.wire
        self._memory = kernel.memory
        # Channels run side by side: one after the other with the blocks of all is as long.
        self._blocks = self.instances * channels
        self._near = [not hosts or hosts[e[0]] == hosts[work.sender(e)] for e in work.edges]

    def of(self, o: Operation, nbytes: float, tolls: Sequence[Toll]) -> float:
        """Return the seconds of an operation on so many bytes; remote edges have their tolls."""
        p = self._protocol
        seconds = self._copies(o) * p.move + self.lead(o, nbytes)
        if any(self._near[e] for e in o.destinations):
            seconds += p.depart
        for e in o.sources:
            seconds += p.receive if self._near[e] else tolls[e].receive + nbytes * tolls[e].byte
        for e in o.destinations:
            seconds += p.send if self._near[e] else tolls[e].send + nbytes * tolls[e].byte
        return seconds

    def lead(self, o: Operation, nbytes: float) -> float:
        """Return the seconds in which the data is moved: peers' memory is stored to meanwhile."""
        p, copies = self._protocol, self._copies(o)
        # Of every REDUCE_COPY the first operands are on their way together, further ones follow.
        rounds = copies + max(0, o.operands - p.together)
        crowd = max(1.0, nbytes / (p.window * self._blocks))
        moved = (o.operands + o.stores + 2 * (copies - 1)) * nbytes / self._memory
        return max(rounds * p.flight * crowd, moved)

    def _copies(self, o: Operation) -> int:
        """Return of how many REDUCE_COPYs an operation is made."""
        partial = -(-(o.operands - 1) // (MAX_SOURCES - 1)) - 1  # folds that are folded on
        return max(1, -(-o.stores // MAX_DESTINATIONS)) + max(0, partial)
