"""Whether the longest message has room in memory, said before anything is allocated."""

from __future__ import annotations

from pycoll.errors import UnavailableError, counted
from pycoll.sysfs import HOST

#: Of every message a rank holds at least the result and what the result must be.
_ARRAYS = 2


def available() -> int | None:
    """Return the bytes that processes can have on this host; None where that is not told."""
    found = (HOST.nbytes("proc/meminfo", name) for name in ("MemAvailable", "SwapFree"))
    known = [nbytes for nbytes in found if nbytes is not None]
    return sum(known) if known else None


def require(nbytes: int, ranks: int, room: int | None) -> None:
    """Refuse what this host surely has no room for.

    Args:
        nbytes: Of all messages of the longest call.
        ranks: On this host.
        room: What `available` says.

    Raises:
        UnavailableError: The arrays of the ranks would not fit.
    """
    wanted = _ARRAYS * nbytes * ranks
    if room is not None and wanted > room:
        raise UnavailableError(
            f"a call of {gib(nbytes)} takes {gib(wanted)} of memory for "
            f"{counted(ranks, 'rank')} of this host, which has {gib(room)} to give; "
            "lower --max, or --min"
        )


def gib(nbytes: int) -> str:
    """Return a number of bytes in GiB."""
    return f"{nbytes / (1 << 30):.4g} GiB"
