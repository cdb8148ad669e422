"""Hide: scratch stands for the places of OUT that a rank's output does not have.

A schedule may write any chunk of the output: what a rank only passes on, or folds for others,
lies where it would lie if the output had it. One operand cannot lie half in OUT and half in
scratch, so up to the last operand that would, all of OUT stays in scratch; then what is still
there is copied out, or overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable

from pycoll.errors import ScheduleError
from pycoll.passes.moves import Location, Move, Where


def within(place: Location, kept: range) -> bool:
    """Tell whether a place of OUT lies wholly in the chunks that the output has."""
    return kept.start <= place.place and place.place + place.nchunks <= kept.stop


def hide(moves: list[Move], rank: int, kept: range, first: int) -> list[Move]:
    """Return the moves with OUT outside of ``kept`` in scratch, chunk c at place ``first + c``."""
    hidden = _Hidden(rank, kept, first)
    last = -1
    for i, move in enumerate(moves):
        for place in move.sources + move.destinations:
            if place.where is Where.OUT and hidden.straddles(place):
                last = i
    result: list[Move] = []
    for i, move in enumerate(moves):
        sources, destinations = [], []
        for place in move.sources:
            if place.where is Where.OUT:
                if i <= last or not within(place, kept):
                    place = hidden.scratch(place, move.channel)
                elif aside := [c for c in place.memory() if c in hidden.aside]:
                    if len(aside) == place.nchunks:
                        place = hidden.scratch(place, move.channel)
                    else:
                        result += hidden.restore(aside)
            sources.append(place)
        for place in move.destinations:
            if place.where is Where.OUT:
                chunks = set(place.memory())
                if i <= last or not within(place, kept):
                    hidden.aside |= chunks.intersection(kept)
                    place = hidden.scratch(place, move.channel)
                else:
                    hidden.aside -= chunks
            destinations.append(place)
        result.append(move._replace(sources=tuple(sources), destinations=tuple(destinations)))
    return result + hidden.restore(hidden.aside)


class _Hidden:
    def __init__(self, rank: int, kept: range, first: int) -> None:
        self.rank, self.kept, self.first = rank, kept, first
        self.aside: set[int] = set()  # chunks of `kept` whose value lies in scratch
        self.channel: dict[int, int] = {}  # of every chunk that was ever there

    def straddles(self, place: Location) -> bool:
        overlaps = place.place < self.kept.stop and self.kept.start < place.place + place.nchunks
        return overlaps and not within(place, self.kept)

    def scratch(self, place: Location, channel: int) -> Location:
        for c in place.memory():
            other = self.channel.setdefault(c, channel)
            if other != channel:
                raise ScheduleError(
                    f"rank {self.rank}: scratch stands for out[{c}], which is used from channels "
                    f"{other} and {channel}; scratch belongs to one channel"
                )
        return place._replace(where=Where.SCRATCH, place=self.first + place.place)

    def restore(self, chunks: Iterable[int]) -> list[Move]:
        """Return the moves that copy chunks from scratch to OUT."""
        runs: list[Location] = []
        for c in sorted(chunks):
            out = runs[-1] if runs else Location(Where.OUT, 0, c, c, 0)
            follows = out.place + out.nchunks == c and self.channel[out.place] == self.channel[c]
            if follows and runs:
                runs[-1] = out._replace(nchunks=out.nchunks + 1)
            else:
                runs.append(Location(Where.OUT, 0, c, c, 1))
        self.aside = self.aside.difference(chunks)
        channels = [self.channel[out.place] for out in runs]
        return [
            Move(channel, (self.scratch(out, channel),), (out,))
            for channel, out in zip(channels, runs, strict=True)
        ]


def compact(moves: list[Move], first: int) -> tuple[list[Move], int]:
    """Return the moves with scratch from ``first`` on renumbered without gaps, and its end.

    What is used first has the first numbers, whatever chunk lies there: ranks that do the same for
    other chunks have the same numbers. Places that one operand covers stay side by side.
    """
    ends: dict[int, int] = {}  # by where operands begin, in the order of their first use
    for move in moves:
        for place in move.sources + move.destinations:
            if place.where is Where.SCRATCH and place.place >= first:
                at, end = place.place, place.place + place.nchunks
                ends[at] = max(end, ends.get(at, end))
    blocks: list[tuple[int, int]] = []  # of places that overlap
    block_of: dict[int, int] = {}
    for at in sorted(ends):
        if blocks and at < blocks[-1][1]:
            blocks[-1] = blocks[-1][0], max(ends[at], blocks[-1][1])
        else:
            blocks.append((at, ends[at]))
        block_of[at] = len(blocks) - 1
    number: dict[int, int] = {}
    end = first
    for block in dict.fromkeys(block_of[at] for at in ends):
        number[block], end = end, end + blocks[block][1] - blocks[block][0]

    def renumbered(place: Location) -> Location:
        if place.where is not Where.SCRATCH or place.place < first:
            return place
        block = block_of[place.place]
        return place._replace(place=number[block] + place.place - blocks[block][0])

    return [
        move._replace(
            sources=tuple(map(renumbered, move.sources)),
            destinations=tuple(map(renumbered, move.destinations)),
        )
        for move in moves
    ], end
