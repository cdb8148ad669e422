"""The decorator that makes a function an Algorithm."""

from __future__ import annotations

from collections.abc import Callable

from pycoll.errors import UsageError, quoted
from pycoll.schedule import COLLECTIVES, Algorithm, Collective, ScheduleBuilder
from pycoll.schedule.collective import CollectiveName


def algorithm(
    collective: Collective | CollectiveName,
) -> Callable[[Callable[[ScheduleBuilder], None]], Algorithm]:
    """Mark a function as an algorithm; registers nothing.

    Args:
        collective: What it computes: such as ``pycoll.allreduce``, or a name such as "allreduce".

    Returns:
        A decorator, which makes an Algorithm of a function of a ScheduleBuilder.

    Raises:
        UsageError: There is no such collective, or what is decorated is no function.

    Example:
        >>> @pycoll.algorithm("broadcast")
        ... def star(b):
        ...     for peer in range(1, b.size) if b.rank == 0 else ():
        ...         b.send(b.input[:], to=peer)
        ...     if b.rank:
        ...         b.recv(b.output[:], frm=0)
        >>> bool(pycoll.verify(star, size=3))
        True
    """
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
