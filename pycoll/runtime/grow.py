"""Grow: an engine of the ranks of another one, and of newcomers; on both sides."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pycoll import log
from pycoll.bootstrap import grown, lobby, newcomer
from pycoll.bootstrap.base import Bootstrap
from pycoll.errors import BrokenError, PeerLostError, counted
from pycoll.runtime.engine import Engine, failed
from pycoll.runtime.native import load
from pycoll.runtime.plan.agreement import plug_in

if TYPE_CHECKING:
    from pycoll.bootstrap.rendezvous import Star
    from pycoll.config import Config
    from pycoll.runtime.plan.agreement import Agreement, Selector


def secret(engine: Engine, address: str) -> bytes:
    """Return what the ranks and newcomers must know; see `lobby.secret`."""
    return lobby.secret(engine.config, address)


def meet(
    old: Bootstrap,
    config: Config,
    agreement: Agreement,
    *,
    count: int,
    address: str,
    secret: bytes,
    seconds: float,
) -> Engine:
    """Return an engine of old ranks and newcomers; each old rank calls this.

    Args:
        old: The old ranks, a group made for this, which is closed.
        config: The settings of this rank.
        agreement: Of the old ranks; with the newcomers they agree anew, by what they gave before.
        count: How many newcomers there shall be.
        address: Where rank 0 waits for them.
        secret: See `lobby.secret`.
        seconds: How long these may take.
    """
    star = grown.meet(old, count, address, secret, load.version(), seconds)
    made = _enter(star, old.name, config, agreement.asked)
    if made.world.rank == 0:
        new = counted(count, "newcomer")
        log.info("group", "%s: the last of %d ranks", new, made.world.size)
    old.close()
    return made


def join(config: Config, wait: float, selector: Selector | str | None) -> Engine:
    """Return an engine of a job that has taken this process in; see `pycoll.join`."""
    assert config.join_address is not None
    if isinstance(selector, str):
        plug_in(selector)  # one that is not there is refused before anybody waits for this process
    known = lobby.secret(config, config.join_address)
    where = lobby.places(config.join_address)
    deadline = time.monotonic() + wait
    while True:
        star = newcomer.meet(where, known, load.version(), deadline, config.timeout)
        try:
            made = _enter(star, "join", config, selector)
        except (PeerLostError, BrokenError):
            # A rank died as all had just met: the others go on without it, and try again.
            if time.monotonic() >= deadline:
                raise
        else:
            newcomer.report(config.newcomer)
            return made


def _enter(star: Star, name: str, config: Config, selector: Selector | str | None) -> Engine:
    met = Bootstrap(name, star, config.timeout)
    try:
        made = Engine(met, config, selector)
    except BaseException as error:
        met.close(reason=failed(error))
        raise
    try:
        met.barrier()  # either all ranks have it, or, but for a death at this moment, none
    except BaseException as error:
        made.leave_after(error)
        raise
    return made
