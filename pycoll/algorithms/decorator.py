"""The decorator that makes a function an Algorithm."""

from __future__ import annotations

from collections.abc import Callable

from pycoll.errors import UsageError, quoted
from pycoll.schedule import COLLECTIVES, Algorithm, Collective, ScheduleBuilder


def algorithm(
    collective: Collective | str,
) -> Callable[[Callable[[ScheduleBuilder], None]], Algorithm]:
    """Mark a function as an algorithm for ``collective`` (or its name); registers nothing."""
    if isinstance(collective, str):
        if collective not in COLLECTIVES:
            raise UsageError(
                f"collective is {quoted(collective)}, want one of {', '.join(COLLECTIVES)}"
            )
        collective = COLLECTIVES[collective]
    if not isinstance(collective, Collective):
        name = getattr(collective, "__name__", quoted(collective))
        raise UsageError(f'{name}: want a collective first, such as @algorithm("allreduce")')
    found: Collective = collective
    return lambda function: Algorithm(function, found)
