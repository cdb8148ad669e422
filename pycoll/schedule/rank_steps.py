"""RankSteps: what one rank does, as its own call of the algorithm wrote it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pycoll.schedule.chunk import Buffer
from pycoll.schedule.collective import Collective
from pycoll.schedule.step import Kind, Step

#: (the other rank, channel) -> steps
Ends = dict[tuple[int, int], list[Step]]


@dataclass(frozen=True)
class RankSteps:
    """One rank's steps in the order of the builder's calls, and what they are steps of."""

    name: str
    collective: Collective
    size: int
    rank: int
    nchunks: int
    nscratch: int  #: places of scratch that this rank uses
    steps: tuple[Step, ...]

    @property
    def given(self) -> range:
        """Chunks that the rank's input has."""
        return self.collective.in_extent(self.rank, self.size, self.nchunks)

    @property
    def kept(self) -> range:
        """Chunks that the rank's output has."""
        return self.collective.out_extent(self.rank, self.size, self.nchunks)

    @cached_property
    def sends(self) -> Ends:
        """The sends to each rank."""
        found: Ends = defaultdict(list)
        for step in self.steps:
            if step.kind is Kind.SEND:
                found[step.peers[0], step.channel].append(step)
        return found

    @cached_property
    def receives(self) -> Ends:
        """The receives from each rank; one of several ranks counts for each of them."""
        found: Ends = defaultdict(list)
        for step in self.steps:
            for peer in step.senders(self.rank):
                found[peer, step.channel].append(step)
        return found


def scratch_of(steps: Iterable[Step]) -> int:
    """Return how many places of scratch steps fill."""
    filled = (c for step in steps for c in step.writes() if c.buffer is Buffer.SCRATCH)
    return max((c.place + c.nchunks for c in filled), default=0)
