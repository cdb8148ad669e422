"""Schedule: every rank's steps for one collective. Immutable; no dtype, bytes or transport."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pycoll.errors import ScheduleError, counted
from pycoll.schedule.chunk import Buffer, Chunks
from pycoll.schedule.collective import Collective
from pycoll.schedule.rank_steps import RankSteps, scratch_of
from pycoll.schedule.step import Kind, Step


class NotDirect(ScheduleError):
    """The schedule has no direct (zero-copy) form; the message says which step prevents it."""


@dataclass(frozen=True)
class Schedule:
    """All ranks' steps; ``ranks[r]`` are those of rank r in the order of the builder's calls."""

    name: str
    collective: Collective
    size: int
    nchunks: int
    nscratch: int  #: places of scratch, the most that any rank uses
    ranks: tuple[tuple[Step, ...], ...]

    def __hash__(self) -> int:
        """Hash by digest, so that a cache keyed by schedules does not walk them."""
        return self.digest

    @cached_property
    def digest(self) -> int:
        """64 bits that tell this schedule from others; the same in every process."""
        head = (self.collective.name, self.size, self.nchunks, self.nscratch)
        state = hashlib.blake2b(repr(head).encode(), digest_size=8)
        # A step's text is the same on many ranks: format each distinct step once.
        lines: dict[Step, str] = {}
        for steps in self.ranks:
            parts = []
            for step in steps:
                line = lines.get(step)
                if line is None:
                    line = lines[step] = f"{step.channel} {step}\n"
                parts.append(line)
            state.update(("".join(parts) + "\f").encode())
        return int.from_bytes(state.digest(), "little")

    def of(self, rank: int) -> RankSteps:
        """Return one rank's side."""
        return self._sides[rank]

    @cached_property
    def _sides(self) -> tuple[RankSteps, ...]:
        head = self.name, self.collective, self.size
        return tuple(
            RankSteps(*head, rank, self.nchunks, scratch_of(steps), steps)
            for rank, steps in enumerate(self.ranks)
        )

    @cached_property
    def widest(self) -> int:
        """Chunks in the widest message of any rank; 1 where there is none."""
        return max(
            (s.chunks.nchunks for r in self.ranks for s in r if s.kind is Kind.SEND), default=1
        )

    @cached_property
    def nchannels(self) -> int:
        """Channels that any rank uses."""
        return max((s.channel for r in self.ranks for s in r), default=0) + 1

    def __repr__(self) -> str:
        steps = counted(sum(map(len, self.ranks)), "step")
        size = counted(self.size, "rank")
        return f"<pycoll.Schedule {self.name} for {self.collective.name} at {size}: {steps}>"

    def __str__(self) -> str:
        """Return the text form; a step of another channel than 0 starts with ``[channel]``."""
        lines = [
            f"schedule {self.name} {self.collective.name} size {self.size} "
            f"chunks {self.nchunks} scratch {self.nscratch}"
        ]
        for rank, steps in enumerate(self.ranks):
            lines.append(f"rank {rank}")
            for step in steps:
                channel = f"[{step.channel}] " if step.channel else ""
                lines.append(f"  {channel}{step}")
        return "\n".join(lines) + "\n"


EdgeKey = tuple[int, int, int]  #: source, destination, channel


def messages(s: Schedule) -> Iterator[tuple[EdgeKey, list[Chunks], list[Chunks]]]:
    """Yield every edge with what is sent and what is received on it, in order."""
    sent: dict[EdgeKey, list[Chunks]] = defaultdict(list)
    received: dict[EdgeKey, list[Chunks]] = defaultdict(list)
    for rank, steps in enumerate(s.ranks):
        for step in steps:
            if step.kind is Kind.SEND:
                sent[rank, step.peers[0], step.channel].append(step.chunks)
            elif step.peers:
                for peer in step.peers:
                    if peer != rank:
                        received[peer, rank, step.channel].append(step.chunks)
    for edge in sent.keys() | received.keys():
        yield edge, sent.get(edge, []), received.get(edge, [])


def check_messages(s: Schedule) -> None:
    """Raise ScheduleError unless the n-th send and receive of every edge carry the same chunks.

    Where all blocks are equally long, and through scratch, the same number of chunks will do.
    """
    by_number = s.collective.equal_blocks
    for (source, destination, channel), sends, receives in messages(s):
        where = f"{s.name}: channel {channel}: rank {source}"
        if len(sends) != len(receives):
            raise ScheduleError(
                f"{where} sends {len(sends)} messages to rank {destination}, "
                f"which receives {len(receives)}"
            )
        for n, (sent, received) in enumerate(zip(sends, receives, strict=True)):
            if sent.nchunks != received.nchunks or (
                not by_number
                and Buffer.SCRATCH not in (sent.buffer, received.buffer)
                and sent.chunk != received.chunk
            ):
                raise ScheduleError(
                    f"{where} sends {sent} as message {n} to rank {destination}, "
                    f"which receives it into {received}"
                )
