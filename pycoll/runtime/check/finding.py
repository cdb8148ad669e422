"""Finding: what a check says of a wrong result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pycoll.errors import CorruptionError, counted
from pycoll.runtime.check.hops import Fit


class Finding(NamedTuple):
    """A wrong place, and whose it is as far as that is known."""

    place: str  #: in words: where, and what differs from what
    first: int  #: element of the result
    last: int
    offset: int  #: of the first wrong byte
    whose: str  #: in words
    ranks: tuple[int, ...]  #: the odd ones
    fits: tuple[Fit, ...] = ()
    unsought: str = ""  #: why no flip was looked for

    def error(self, call: str, number: int, communicator: str) -> CorruptionError:
        """Return what every rank raises."""
        where = f"elements {self.first} to {self.last}"
        if self.first == self.last:
            where = f"element {self.first}"
        made = CorruptionError(
            f"{call}, call {number} of communicator {communicator!r}: a wrong result: {where} "
            f"(from byte {self.offset} on), {self.place}; {self.whose}; {self._flip()}"
        )
        made.call, made.communicator = call, communicator
        made.first, made.last, made.offset = self.first, self.last, self.offset
        made.ranks = self.ranks
        made.hops = tuple((f.source, f.target, f.bit) for f in self.fits if f.kind == "message")
        return made

    def _flip(self) -> str:
        if self.unsought:
            return f"which hop it came by is not known: {self.unsought}"
        if not self.fits:
            return "no single flipped bit explains it"
        # What is wrong in an input goes on its way, too, where that is sent.
        moved = [fit for fit in self.fits if fit.kind != "input"] or self.fits
        return f"one flipped bit explains it: {' or '.join(_said(moved))}"


def _said(fits: Sequence[Fit]) -> Iterable[str]:
    for f in fits:
        if f.kind == "message":
            yield f"bit {f.bit} on the way from rank {f.source} to rank {f.target}"
        elif f.kind == "fold":
            yield f"bit {f.bit} of what rank {f.target} folded"
        else:
            yield f"bit {f.bit} of rank {f.target}'s {f.kind} in its memory"


def ranks_text(ranks: Sequence[int]) -> str:
    """Name ranks."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{counted(len(ranks), 'rank')} ({', '.join(map(str, ranks))})"


def majority(votes: dict[int, bytes]) -> bytes | None:
    """Return what more than half of the voters say; None if there is no such thing."""
    said = list(votes.values())
    for value in set(said):
        if 2 * said.count(value) > len(said):
            return value
    return None
