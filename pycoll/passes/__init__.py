"""From steps to channels of moves, waits and signals: two pages of named lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycoll.passes.direct import check_exclusive, direct
from pycoll.passes.feasible import feasible
from pycoll.passes.fold import Folder
from pycoll.passes.forward_input import forward_input
from pycoll.passes.fuse import drop_dead_stores, fuse, split
from pycoll.passes.moves import Limits, Move, Place, Where
from pycoll.passes.slots import slots
from pycoll.passes.sync import End, Item, Link, Signal, Wait, release, sync
from pycoll.schedule import Schedule

#: per rank, the steps that end an average
Completes = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Lowered:
    """One rank's side, ready to be written down as a Program."""

    channels: dict[int, list[Item]]  #: what the LOOP of each channel holds
    nscratch: int  #: places of scratch, the hidden ones of long folds included
    tail: list[Item] = field(default_factory=list)  #: behind the LOOP of channel 0


def staged(s: Schedule, rank: int, completes: Completes, limits: Limits, fused: bool) -> Lowered:
    """Return one rank's side with messages through slots."""
    folder = Folder(limits.sources, s.nscratch)
    moves = slots(s.ranks[rank], rank, completes[rank], folder)
    moves = forward_input(moves, s.nchunks)
    if fused:
        moves = fuse(moves)
    moves = drop_dead_stores(moves, s.nchunks, limits.destinations)
    moves = split(moves, limits.destinations)
    return Lowered(sync(moves, rank), folder.nscratch)


def mapped(s: Schedule, completes: Completes, limits: Limits) -> list[Lowered]:
    """Return all ranks' sides with loads and stores in peers' memory, or raise NotDirect."""
    folders = [Folder(limits.sources, s.nscratch) for _ in s.ranks]
    moves, pushed = direct(s, completes, folders)
    moves = [forward_input(m, s.nchunks, p) for m, p in zip(moves, pushed, strict=True)]
    check_exclusive(s, moves)
    moves = [fuse(m) for m in moves]
    moves = [drop_dead_stores(m, s.nchunks, limits.destinations) for m in moves]
    moves = [split(m, limits.destinations) for m in moves]
    tails = release(moves)
    return [
        Lowered(sync(m, rank), folders[rank].nscratch, tails[rank]) for rank, m in enumerate(moves)
    ]


__all__ = [
    "Completes",
    "End",
    "Item",
    "Limits",
    "Link",
    "Lowered",
    "Move",
    "Place",
    "Signal",
    "Wait",
    "Where",
    "feasible",
    "mapped",
    "staged",
]
