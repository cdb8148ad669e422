"""Selectors: a user's own choice of algorithms, as a function or by the name of a plug-in."""

from __future__ import annotations

from pycoll.cost.select import Selector
from pycoll.errors import UsageError, quoted

GROUP = "pycoll.selectors"  #: of entry points; each is a function Question -> Choice | None


def selector(wanted: Selector | str) -> Selector:
    """Return the selector itself, or load the plug-in of that name.

    Every rank calls it by itself, so it must depend on the question alone; ranks whose selectors
    answer differently find out at the first message.

    Args:
        wanted: A function from a Question to a Choice, or to None where it has no opinion; or the
            name of one.

    Returns:
        The function.

    Raises:
        UsageError: There is no such plug-in, or it does not load.

    Example:
        >>> cost.selector(lambda question: None)(cost.Question("allreduce", 8, 4, 4)) is None
        True
    """
    if not isinstance(wanted, str):
        if not callable(wanted):
            raise UsageError(
                f"selector is {quoted(wanted)}, want a function or the name of a plug-in"
            )
        return wanted
    from importlib.metadata import entry_points  # slow to load, and rarely needed

    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if wanted not in known:
        raise UsageError(
            f"selector is {quoted(wanted)}, want one of {', '.join(sorted(known)) or 'none'} "
            f"(entry points of the group {GROUP})"
        )
    try:
        loaded: Selector = known[wanted].load()
    except Exception as error:
        raise UsageError(
            f"selector {quoted(wanted)} does not load: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise UsageError(f"selector {quoted(wanted)} is {quoted(loaded)}, want a function")
    return loaded
