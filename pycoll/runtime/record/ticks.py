"""Ticks: the counter of the processor by which events are timed, as CLOCK_MONOTONIC."""

from __future__ import annotations

import time

from pycoll.runtime.native.trace import trace_clock

#: The first look at both clocks; the longer ago, the better is the rate known.
_BEGAN = trace_clock()
#: Nanoseconds between two looks from which on the rate is good to some millionths.
_LONG = 20_000_000


class Clock:
    """How ticks stand to CLOCK_MONOTONIC now."""

    def __init__(self) -> None:
        if trace_clock()[1] - _BEGAN[1] < _LONG:
            time.sleep(_LONG / 1e9)
        self._ticks, self.now_ns = trace_clock()
        self._rate = (self.now_ns - _BEGAN[1]) / max(1, self._ticks - _BEGAN[0])

    def ns(self, ticks: int) -> int | None:
        """Return when that was, in nanoseconds; None: never (0)."""
        return self.now_ns - round((self._ticks - ticks) * self._rate) if ticks else None
