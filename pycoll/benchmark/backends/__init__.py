"""The libraries that ``pycoll bench`` times, each reduced to "bind these arrays, give me a call".

A call may also be begun, which returns what waits for its end, for what overlaps computation.

A backend's module is imported only when it is asked for, and its library with it; what is missing
is an UnavailableError that names the command that mends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pycoll.benchmark.oob import Share, share
from pycoll.benchmark.problem import Array, Problem
from pycoll.config import Config
from pycoll.errors import UsageError

NAMES = ("mpi4py", "gloo")

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

    def close(self) -> None:
        """Give back what the library opened."""


def open_all(chosen: Sequence[str], comm: Any, stack: contextlib.ExitStack) -> list[Backend]:
    """Open libraries beside a communicator, on all its ranks alike; the stack closes them."""
    address = comm._engine.bootstrap.address(Config.load().iface)
    found = []
    for name in chosen:
        found.append(open_backend(name, comm.rank, comm.size, share(comm), address))
        stack.callback(found[-1].close)
    return found


def open_backend(
    name: str, rank: int, size: int, share: Share, address: str = "localhost"
) -> Backend:
    """Open the library called ``name``, on all ranks alike.

    Args:
        name: One of `NAMES`.
        rank: Of this process.
        size: Number of ranks.
        share: Passes a text on from rank 0.
        address: At which the other ranks reach this one.
    """
    if name == "mpi4py":
        from pycoll.benchmark.backends.mpi4py import MPI4Py

        return MPI4Py(rank, size)
    if name == "gloo":
        from pycoll.benchmark.backends.gloo import Gloo

        return Gloo(rank, size, share, address)
    raise UsageError(f"--against names {name!r}, want some of {', '.join(NAMES)}")


def first_line(error: object) -> str:
    """Return the first line of what an error, or a library's version, says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
