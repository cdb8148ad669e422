"""Communicators of some of the ranks of a Communicator."""

from __future__ import annotations

import operator
from typing import Self

from pycoll.bootstrap.descriptors import enough
from pycoll.errors import UsageError, quoted
from pycoll.objects import Objects
from pycoll.runtime.plan.options import CallOptions

_INT64 = range(-(1 << 63), 1 << 63)


class Groups(Objects):
    """How a communicator's ranks form others.

    A new communicator has queues, plans and failures of its own: one that breaks leaves the others
    usable. A process that dies breaks all that it belongs to. They may be closed in any order.
    The slots of each take up to 8 MiB of memory, as they are used, and arrays of its `empty` more.
    """

    _groups = 0  #: made so far, on every rank alike

    def split(self, color: int | None, key: int = 0, timeout: float | None = None) -> Self | None:
        """Return a communicator of the ranks that give the same color; every rank calls it.

        Args:
            color: Which of the new communicators this rank joins; None: none of them.
            key: Ranks there are in order of key, and of rank here where keys are equal.
            timeout: Seconds.

        Returns:
            The new communicator, or None if ``color`` is None.
        """
        with self._engine.order.begins("split"):
            import numpy

            mine = [
                color is not None,
                _whole(0 if color is None else color, "color"),
                _whole(key, "key"),
            ]
            asked = CallOptions(timeout=timeout, purpose="split()")
            said = self._launch.run("allgather", numpy.array(mine, numpy.int64), None, asked)
        self._groups += 1
        if color is None:
            return None
        same = [
            (theirs[2], rank)
            for rank, theirs in enumerate(said.reshape(-1, 3).tolist())
            if theirs[:2] == mine[:2]
        ]
        return self._group([rank for _, rank in sorted(same)], "split")

    def dup(self, timeout: float | None = None) -> Self:
        """Return another communicator of the same ranks; every rank calls it."""
        with self._engine.order.begins("dup"):
            self._launch.arrive(CallOptions(timeout=timeout, purpose="dup()"), False)
        self._groups += 1
        return self._group(list(range(self.size)), "dup")

    def _group(self, ranks: list[int], how: str) -> Self:
        with enough(how, len(ranks)):
            return type(self)(self._engine.group(ranks, f"{how} {self._groups}"))


def _whole(value: int, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = _INT64.stop
    if number not in _INT64:
        raise UsageError(f"split: {name} is {quoted(value)}, want an integer of at most 64 bits")
    return number
