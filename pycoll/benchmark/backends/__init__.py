"""The libraries that ``pycoll bench`` times, each reduced to "bind these arrays, give me a call".

A call may also be begun, which returns what waits for its end, for what overlaps computation.

A backend's module is imported only when it is asked for, and its library with it; what is missing
is an UnavailableError that names the command that mends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pycoll.benchmark.backends.backend import Backend, Begin, Call
from pycoll.benchmark.oob import Share, share
from pycoll.config import Config
from pycoll.errors import UsageError

NAMES = ("mpi4py", "gloo")


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


__all__ = ["NAMES", "Backend", "Begin", "Call", "open_all", "open_backend"]
