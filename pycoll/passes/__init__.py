"""From steps to channels of moves, waits and signals: two pages of named lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycoll.passes.direct import check_exclusive, direct
from pycoll.passes.feasible import feasible
from pycoll.passes.fold import Folder
from pycoll.passes.forward_input import forward_input
from pycoll.passes.fuse import drop_dead_stores, fuse, split
from pycoll.passes.hide import compact, hide
from pycoll.passes.moves import Limits, Location, Move, Where, uniform
from pycoll.passes.slots import slots
from pycoll.passes.sync import CountKind, End, Item, Signal, Wait, release, sync
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
    if s.collective.in_place:
        given, kept = _extents(s, rank)
        moves = forward_input(moves, given, kept)
    moves, nscratch = _finish(s, rank, moves, limits, folder.nscratch, fused)
    return Lowered(sync(moves, rank, s.collective.in_place), nscratch)


def mapped(s: Schedule, completes: Completes, limits: Limits) -> list[Lowered]:
    """Return all ranks' sides with loads and stores in peers' memory, or raise NotDirect."""
    folders = [Folder(limits.sources, s.nscratch) for _ in s.ranks]
    moves, pushed = direct(s, completes, folders)
    if s.collective.in_place:
        moves = [forward_input(m, *_extents(s, r), pushed[r]) for r, m in enumerate(moves)]
    check_exclusive(s, moves)
    finished = [
        _finish(s, rank, m, limits, folders[rank].nscratch, True) for rank, m in enumerate(moves)
    ]
    tails = release([m for m, _ in finished])
    return [
        Lowered(sync(m, rank, s.collective.in_place), nscratch, tails[rank])
        for rank, (m, nscratch) in enumerate(finished)
    ]


def _extents(s: Schedule, rank: int) -> tuple[range, range]:
    given = s.collective.in_extent(rank, s.size, s.nchunks)
    return given, s.collective.out_extent(rank, s.size, s.nchunks)


def _finish(
    s: Schedule, rank: int, moves: list[Move], limits: Limits, nscratch: int, fused: bool
) -> tuple[list[Move], int]:
    """Return the moves as the target can run them, and how many places of scratch they use."""
    _, kept = _extents(s, rank)
    hides = len(kept) < s.nchunks
    if hides:
        moves = hide(moves, rank, kept, nscratch)
    if fused:
        moves = fuse(moves)
    moves = drop_dead_stores(moves, kept, limits.destinations)
    moves = split(moves, limits.destinations)
    if hides:
        moves, nscratch = compact(moves, nscratch)
    if s.collective.equal_blocks:
        moves = [uniform(move) for move in moves]
    return moves, nscratch


__all__ = [
    "Completes",
    "CountKind",
    "End",
    "Item",
    "Limits",
    "Location",
    "Lowered",
    "Move",
    "Signal",
    "Wait",
    "Where",
    "feasible",
    "mapped",
    "staged",
]
