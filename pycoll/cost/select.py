"""Which algorithm runs a collective: a pure function, so that all ranks choose alike."""

from __future__ import annotations

from typing import NamedTuple

from pycoll.cost import model
from pycoll.errors import UsageError

#: From here the direct form, where a call has it, beats staging, and asking for it costs little:
#: READY is one round among all ranks, even where it then turns out that arrays are not registered.
DIRECT_BYTES = 16 << 10
#: The same where ranks share cores, and a round is many context switches.
DIRECT_BYTES_SHARED = 256 << 10
#: Results larger than this will not be read from a cache, so they are written past it. Direct,
#: half of them lie in the cache of another core, if in any, so it pays sooner.
STREAM_BYTES = 32 << 20
STREAM_BYTES_DIRECT = 16 << 20
#: Bytes of a chunk per turn of the loop: as large as a slot allows, for a signal wakes a rank.
TILE_BYTES = 256 << 10


class Choice(NamedTuple):
    """How a collective of one size is to run."""

    algorithm: str
    tile: int  #: bytes wanted of a chunk per turn of the loop; a multiple of 64
    stream: int  #: write the result past the cache: 1 where staged, 2 where direct
    direct: str | None  #: whose direct form to use where every array allows it
    reason: str


def choose(
    collective: str, nbytes: int, size: int, cores: int, algorithm: str | None = None
) -> Choice:
    """Choose the algorithm that the model finds fastest.

    Args:
        collective: "allreduce" or "barrier".
        nbytes: Bytes of the message.
        size: Number of ranks.
        cores: Cores that the ranks may run on, as rank 0 counts them.
        algorithm: The user's choice, which beats the model's; its tile is still chosen.

    Raises:
        UsageError: There is no such collective.
    """
    if collective not in ("allreduce", "barrier"):
        raise UsageError(f"collective is {collective!r}, want 'allreduce' or 'barrier'")
    machine = model.Machine(size, cores)
    stream = (nbytes >= STREAM_BYTES) + 2 * (nbytes >= STREAM_BYTES_DIRECT)
    least = DIRECT_BYTES if machine.turns == 1 else DIRECT_BYTES_SHARED
    wide = nbytes >= least and size > 1
    if algorithm is not None:
        return Choice(algorithm, TILE_BYTES, stream, algorithm if wide else None, "asked for")
    times = {name: model.seconds(name, nbytes, machine) for name in model.WORK}
    best = min(times, key=times.__getitem__)
    reason = f"{times[best] * 1e6:.1f} us by the model"
    return Choice(best, TILE_BYTES, stream, "two_shot" if wide else None, reason)
