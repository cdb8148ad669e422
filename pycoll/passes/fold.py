"""Fold: more operands than one REDUCE_COPY holds become partial folds in hidden scratch."""

from __future__ import annotations

from pycoll.passes.moves import Location, Move, Where


class Folder:
    """Writes folds and hands out the hidden scratch that long ones need."""

    def __init__(self, sources: int, nscratch: int) -> None:
        """Fold at most ``sources`` operands at once; scratch from ``nscratch`` on is free."""
        self.sources = sources
        self.nscratch = nscratch
        self._hidden: dict[int, tuple[int, int]] = {}  # channel -> first place, places

    def fold(
        self, channel: int, order: tuple[Location, ...], into: Location, scale: bool
    ) -> list[Move]:
        """Return the moves that leave the fold of ``order``, in that order, in ``into``."""
        moves = []
        while len(order) > self.sources:
            partial = self._scratch(channel, into)
            moves.append(Move(channel, order[: self.sources], (partial,)))
            order = (partial, *order[self.sources :])
        return [*moves, Move(channel, order, (into,), scale)]

    def _scratch(self, channel: int, like: Location) -> Location:
        # One area per channel: a partial fold is read by the next move and then free again.
        first, count = self._hidden.get(channel, (self.nscratch, 0))
        if count < like.nchunks:
            first = self.nscratch
            self.nscratch += like.nchunks
            self._hidden[channel] = (first, like.nchunks)
        return Location(Where.SCRATCH, 0, first, like.chunk, like.nchunks)
