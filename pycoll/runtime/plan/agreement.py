"""Agreement: what the ranks of a job choose algorithms by, agreed once, when they have met."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pycoll import log
from pycoll.errors import UsageError
from pycoll.order import FREE

if TYPE_CHECKING:
    from pycoll.bootstrap import Bootstrap
    from pycoll.config import Config
    from pycoll.cost import Question
    from pycoll.runtime.join import World

#: What `init` takes: a plug-in's name, or a function like it.
Selector = Callable[["Question"], Any]

_FUNCTION = "a function"


class Agreement(NamedTuple):
    """The same on all ranks, and in the groups that they form."""

    tuning: dict[str, Any] | None = None  #: what rank 0 found measured, as JSON
    selector: Selector | None = None
    unproved: bool = False  #: all ranks let through what takes too long to prove
    order: str = FREE  #: in which reductions fold, unless a call says otherwise
    given: str = ""  #: the name of the plug-in, or that it was a function
    check: int = 0  #: every so many calls one is checked; 0: none

    @property
    def asked(self) -> Selector | str | None:
        """What a rank gives that agrees on the same anew, with others."""
        return self.selector if self.given == _FUNCTION else self.given or None


def agree(
    bootstrap: Bootstrap, world: World, config: Config, selector: Selector | str | None
) -> Agreement:
    """Hear what rank 0 knows, and that ranks were given selectors, orders and PYCOLL_CHECK alike.

    A name is looked up here, on every rank, so that one that is wrong is refused before any call.

    Raises:
        UsageError: They were not, or there is no selector of that name.
    """
    named = selector if isinstance(selector, str) else "" if selector is None else _FUNCTION
    tuning = _tuning(world, config) if world.rank == 0 else None
    mine: dict[str, Any] = {"selector": named, "tuning": tuning, "unproved": config.unproved}
    mine |= {"order": config.order, "check": config.check}
    blobs = bootstrap.allgather(json.dumps(mine).encode(), config.timeout)
    first = {blob: rank for rank, blob in reversed([*enumerate(blobs)])}  # mostly all say the same
    said = {rank: json.loads(blob) for blob, rank in first.items()}
    wanted = said[0]["selector"]
    for rank, theirs in sorted(said.items()):
        # A name is enough on rank 0; a function cannot travel.
        if theirs["selector"] != wanted and (theirs["selector"] or wanted == _FUNCTION):
            raise UsageError(
                f"selector is {theirs['selector'] or 'not given'} on rank {rank} and "
                f"{wanted or 'not given'} on rank 0; give all ranks the same"
            )
        if theirs["order"] != said[0]["order"]:
            raise UsageError(
                f"order is {theirs['order']!r} on rank {rank} and {said[0]['order']!r} on rank 0; "
                "give all ranks the same, by init(order=...) or PYCOLL_ORDER"
            )
        if theirs["check"] != said[0]["check"]:
            raise UsageError(
                f"PYCOLL_CHECK is {theirs['check']} on rank {rank} and {said[0]['check']} on rank "
                "0; give all ranks the same"
            )
    if tuning and world.rank == 0:
        log.info("selection", "by what `pycoll tune` has measured before the model")
    if wanted and world.rank == 0:
        log.info("selection", "by a selector: %s", wanted)
    chosen = selector if callable(selector) else plug_in(wanted)
    unproved = all(theirs["unproved"] for theirs in said.values())
    return Agreement(said[0]["tuning"], chosen, unproved, said[0]["order"], wanted, config.check)


def plug_in(name: str) -> Selector | None:
    """Return the selector of this name; UsageError if there is none."""
    if not name:
        return None
    from pycoll.cost import selector  # looks at what is installed, which is slow and rarely needed

    return selector(name)


def _tuning(world: World, config: Config) -> dict[str, Any] | None:
    if not os.path.isdir(config.cache / "tuning"):  # Path's own raises where it may not look
        return None
    # Loaded only where something was measured: it brings every algorithm.
    from pycoll.cost import load as load_tuning
    from pycoll.runtime.native import load
    from pycoll.runtime.plan.question import question

    found = load_tuning(config.cache, load.version(), question(world, "allreduce", 0))
    return None if found is None else found.to_json()
