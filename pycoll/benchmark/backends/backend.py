"""What every library that is timed gives: a call that solves a problem, and one that begins it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pycoll.benchmark.problem import Array, Problem

Call = Callable[[], object]
#: Begins a call, and returns what waits for its end.
Begin = Callable[[], Call]


class Backend(Protocol):
    """Another library."""

    name: str
    versions: dict[str, str]  #: what to write into the results' meta

    def bind(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Call:
        """Return a call that solves the problem from ``x`` into ``out``.

        Raises:
            UsageError: The library does not serve it; the same on all ranks.
        """

    def begin(self, problem: Problem, x: Array, out: Array, in_place: bool) -> Begin:
        """Return the same, of a collective, as a call that does not block."""

    def settle(self) -> None:
        """Return once the calls of all ranks have ended; all ranks call it together.

        A library may leave its last messages to what it is called for next, as MPI may. Before the
        ranks wait for each other by other means, that must be done: else one of them waits in a
        call for what another has still to send.
        """

    def close(self) -> None:
        """Give back what the library opened."""


def first_line(error: object) -> str:
    """Return the first line of what an error, or a library's version, says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
