"""Communicators of some of the ranks of a Communicator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pycoll.bootstrap.descriptors import enough
from pycoll.errors import UsageError, quoted
from pycoll.runtime.plan.options import CallOptions

if TYPE_CHECKING:
    from pycoll.collectives import Collectives
    from pycoll.runtime.engine import Engine

C = TypeVar("C")  #: a class of communicators

_INT64 = range(-(1 << 63), 1 << 63)


class Groups:
    """What forms them, of one communicator."""

    def __init__(self, engine: Engine, collectives: Collectives) -> None:
        self._engine = engine
        self._collectives = collectives
        self._formed = 0  #: on every rank alike

    def split(
        self, make: Callable[[Engine], C], color: int | None, key: int, timeout: float | None
    ) -> C | None:
        """Return what ``make`` makes of the ranks that give the same color."""
        with self._engine.order.begins("split"):
            import numpy

            mine = [
                color is not None,
                _whole(0 if color is None else color, "color"),
                _whole(key, "key"),
            ]
            options = CallOptions(timeout=timeout, purpose="split()")
            every = numpy.array(mine, numpy.int64)
            said = self._collectives.launch.run("allgather", every, None, options)
        self._formed += 1
        if color is None:
            return None
        same = [
            (theirs[2], rank)
            for rank, theirs in enumerate(said.reshape(-1, 3).tolist())
            if theirs[:2] == mine[:2]
        ]
        return self._group(make, [rank for _, rank in sorted(same)], "split")

    def dup(self, make: Callable[[Engine], C], timeout: float | None) -> C:
        """Return what ``make`` makes of the same ranks."""
        with self._engine.order.begins("dup"):
            self._collectives.launch.arrive(CallOptions(timeout=timeout, purpose="dup()"), False)
        self._formed += 1
        return self._group(make, list(range(self._engine.world.size)), "dup")

    def _group(self, make: Callable[[Engine], C], ranks: list[int], how: str) -> C:
        with enough(how, len(ranks)):
            return make(self._engine.group(ranks, f"{how} {self._formed}"))


def _whole(value: int, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = _INT64.stop
    if number not in _INT64:
        raise UsageError(f"split: {name} is {quoted(value)}, want an integer of at most 64 bits")
    return number
