"""Shrink: the survivors of a broken communicator make another, of those who live.

Who they are the routers decide (`bootstrap.recovery`). A rank joins each view that is proposed, as
ranks join any communicator, until one is chosen.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pycoll import log
from pycoll.bootstrap.control_router import rank_list
from pycoll.bootstrap.recovery import LATE
from pycoll.bootstrap.survivor import SUPERSEDED
from pycoll.errors import (
    BrokenError,
    CollectiveTimeout,
    LostError,
    PeerLostError,
    PycollError,
)
from pycoll.runtime.engine import Engine, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pycoll.bootstrap.recovery import Proposal
    from pycoll.bootstrap.survivor import Accepting, Survivor


def shrink(engine: Engine, seconds: float) -> Engine:
    """Return an engine of those who live; each of them calls this.

    Raises:
        LostError: The others went on without this rank, or nobody may go on.
    """
    engine.failure.revoke("shrink()")
    survivor = engine.bootstrap.control.recover(seconds)
    if engine.world.size == 1:
        return engine.remade([0], engine.bootstrap.group([0], "shrink"))
    made: Engine | None = None
    try:
        while True:
            word = survivor.next()
            if word is None and engine.bootstrap.control.forsake():
                continue  # to the next router, which is told all anew
            if survivor.chosen and made and survivor.joined(survivor.chosen):
                _note(engine, made, survivor.chosen)
                return made
            if made:
                made.leave()
                made = None
            if not word or isinstance(word, str) or survivor.chosen:
                raise LostError(f"shrink: {_out(engine, word)}")
            made = _join(engine, survivor, word)
    except BaseException:
        survivor.raise_out()
        if made:
            made.leave()
        raise


def _note(engine: Engine, made: Engine, chosen: Proposal) -> None:
    """Log who is out, and why, once for all."""
    control = engine.bootstrap.control
    out = [i for i, rank in enumerate(control.ranks) if rank not in chosen.view.ranks]
    if made.world.rank or not out:
        return
    lost = control.lost()
    why = ", ".join(dict.fromkeys(lost.get(rank, LATE) for rank in out))
    sizes = made.world.size, engine.world.size
    log.info("shrink", "%d of %d ranks go on, without %s (%s)", *sizes, rank_list(out), why)


def _out(engine: Engine, word: Proposal | str | None) -> str:
    who = f"rank {engine.world.rank} is out"
    if word is None:
        return f"{who}: no other rank has answered"
    return f"{who}: {word if isinstance(word, str) else 'the others have gone on without it'}"


def _join(engine: Engine, survivor: Survivor, proposal: Proposal) -> Engine | None:
    """Join a view and accept it; None: others do not come, so another is about to be proposed."""
    control = engine.bootstrap.control
    numbers = {rank: i for i, rank in enumerate(control.ranks)}
    ranks = [numbers[rank] for rank in proposal.view.ranks]
    name = proposal.view.name
    bootstrap = engine.bootstrap.group(ranks, f"shrink {name.router} {name.turn}")
    over = BrokenError(SUPERSEDED)

    def accept(told: Callable[[], None]) -> Accepting:
        return survivor.accepting(proposal, told)

    try:
        with survivor.joining(lambda: bootstrap.control.cancel(over)):
            made = engine.remade(ranks, bootstrap, accept)
    except BaseException as error:
        with contextlib.suppress(PycollError):
            bootstrap.close(reason=failed(error))
        if isinstance(error, PeerLostError | BrokenError | CollectiveTimeout):
            return None
        raise  # what keeps this rank, or all, from joining any
    if not survivor.joined(proposal):
        survivor.accept(proposal)
    return made
