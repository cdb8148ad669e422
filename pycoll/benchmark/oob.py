"""Out of band: what the ranks of a benchmark tell each other beside what is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

#: Gives every rank the list of what each rank passed, a number or equally long arrays of numbers;
#: all ranks leave it together.
Gather = Callable[[Any], list[Any]]
#: Gives every rank the text that rank 0 passed.
Share = Callable[[str], str]
_SHARED_TEXT = 64  #: bytes of the longest text that ranks share (a port)


def gather(comm: Any, settle: Iterable[Callable[[], None]] = ()) -> Gather:
    """Return the ranks' way to compare times: an all-reduce of a place for each rank's.

    Without a communicator there is one rank, which hears itself.

    Args:
        comm: A Communicator, or None.
        settle: What ends the calls of other libraries, before the ranks compare anything.
    """
    settle = tuple(settle)
    if comm is None:
        return lambda value: [value]

    def exchange(value: Any) -> list[Any]:
        for end in settle:
            end()
        places = np.zeros((comm.size, np.size(value)))
        places[comm.rank] = value
        comm.allreduce(places)
        return [float(row[0]) if np.ndim(value) == 0 else row for row in places]

    return exchange


def share(comm: Any) -> Share:
    """Return the ranks' way to pass a short text on from rank 0."""

    def pass_on(text: str) -> str:
        places = np.zeros(_SHARED_TEXT, np.uint8)
        if comm.rank == 0:
            data = text.encode()
            places[: len(data)] = list(data)
        comm.allreduce(places, op="max")
        return bytes(places).rstrip(b"\0").decode()

    return pass_on
