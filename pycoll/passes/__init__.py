"""From steps to channels of moves, waits and signals: two pages of named lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycoll.passes.direct import Direct, StepsOf, check_exclusive, check_steps, direct
from pycoll.passes.feasible import feasible
from pycoll.passes.fold import Folder
from pycoll.passes.forward_input import forward_input
from pycoll.passes.fuse import drop_dead_stores, fuse, split
from pycoll.passes.hide import compact, hide
from pycoll.passes.moves import Limits, Location, Move, Where, uniform
from pycoll.passes.slots import slots
from pycoll.passes.sync import CountKind, End, Item, Signal, Wait, release, sync
from pycoll.schedule import RankSteps, Schedule


@dataclass(frozen=True)
class Lowered:
    """One rank's side, ready to be written down as a Program."""

    channels: dict[int, list[Item]]  #: what the LOOP of each channel holds
    nscratch: int  #: places of scratch, the hidden ones of long folds included
    tail: list[Item] = field(default_factory=list)  #: behind the LOOP of channel 0


def staged(mine: RankSteps, completes: frozenset[int], limits: Limits, fused: bool) -> Lowered:
    """Return a rank's side with messages through slots.

    Args:
        mine: Its steps.
        completes: Those of them that end an average.
        limits: Of one move.
        fused: Whether receives may be fused with the sends behind them, see `feasible`.
    """
    folder = Folder(limits.sources, mine.nscratch)
    moves = slots(mine.steps, mine.rank, completes, folder)
    if mine.collective.in_place:
        moves = forward_input(moves, mine.given, mine.kept)
    moves, nscratch = _finish(mine, moves, limits, folder.nscratch, fused)
    return Lowered(sync(moves, mine.rank, mine.collective.in_place), nscratch)


def mapped(mine: RankSteps, of: StepsOf, completes: frozenset[int], limits: Limits) -> Lowered:
    """Return a rank's side with loads and stores in peers' memory, where `check_direct` allows.

    Args:
        mine: Its steps.
        of: Returns the steps of a rank that it exchanges messages with.
        completes: Those of its own that end an average.
        limits: Of one move.
    """
    folder = Folder(limits.sources, mine.nscratch)
    moves, form = _mapped(mine, of, completes, folder)
    moves, nscratch = _finish(mine, moves, limits, folder.nscratch, True)
    channels = sync(moves, mine.rank, mine.collective.in_place)
    return Lowered(channels, nscratch, release(form.touches, form.touched_by))


def check_direct(s: Schedule, limits: Limits) -> None:
    """Raise NotDirect unless all ranks together have a direct form."""
    check_steps(s)
    none = frozenset[int]()
    folders = (Folder(limits.sources, s.nscratch) for _ in s.ranks)
    sides = zip(range(s.size), folders, strict=True)
    check_exclusive(s, [_mapped(s.of(r), s.of, none, folder)[0] for r, folder in sides])


def _mapped(
    mine: RankSteps, of: StepsOf, completes: frozenset[int], folder: Folder
) -> tuple[list[Move], Direct]:
    form = direct(mine, of, completes, folder)
    if not mine.collective.in_place:
        return form.moves, form
    return forward_input(form.moves, mine.given, mine.kept, form.pushed), form


def _finish(
    mine: RankSteps, moves: list[Move], limits: Limits, nscratch: int, fused: bool
) -> tuple[list[Move], int]:
    """Return the moves as the target can run them, and how many places of scratch they use."""
    kept = mine.kept
    hides = len(kept) < mine.nchunks
    if hides:
        moves = hide(moves, mine.rank, kept, nscratch)
    if fused:
        moves = fuse(moves)
    moves = drop_dead_stores(moves, kept, limits.destinations)
    moves = split(moves, limits.destinations)
    if hides:
        moves, nscratch = compact(moves, nscratch)
    if mine.collective.equal_blocks:
        moves = [uniform(move) for move in moves]
    return moves, nscratch


__all__ = [
    "CountKind",
    "End",
    "Item",
    "Limits",
    "Location",
    "Lowered",
    "Move",
    "Signal",
    "StepsOf",
    "Wait",
    "Where",
    "check_direct",
    "feasible",
    "mapped",
    "staged",
]
