"""The problem of a barrier: no data, but nobody may leave before everyone has come."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from typing import Any

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Array, Problem
from pycoll.dtypes import ReduceOp
from pycoll.sysfs import boot_id

_LATE = 1e-3  #: seconds: at most so late a rank comes to a barrier that is checked


class BarrierProblem(Problem):
    """A barrier among ranks that come late by chance.

    Whether it held is told by the clock, so of ranks that share one: those of a host.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(OPERATIONS["barrier"], 0, "uint8", ReduceOp.SUM, rank, size)
        self._random = random.Random(rank)

    def check(
        self, run: Callable[[], object], x: Array, out: Array, gather: Callable[[Any], list[Any]]
    ) -> int:
        """Go through a barrier; return 1 if this rank left before a rank of its host had come."""
        gather(0.0)
        time.sleep(self._random.uniform(0, _LATE))
        entered = time.monotonic()
        run()
        left = time.monotonic()
        came = zip(gather(entered), gather(clock()), strict=True)
        return int(left < max(when for when, of in came if of == clock()))


def clock() -> float:
    """Return a number that ranks with one monotonic clock share: that of the running kernel."""
    return float(zlib.crc32(boot_id().encode()))
