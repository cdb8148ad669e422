"""How a rank's GPU reaches the other ranks, and why not in a better way."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pycoll.bootstrap.control_router import rank_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pycoll.runtime.cuda.gpudirect import Said
    from pycoll.runtime.join import World


class Way(NamedTuple):
    """To one rank."""

    how: str  #: "cuda", "shm", or the transport between hosts; "verbs+gpu": from GPU to GPU
    lack: str  #: why not in a better way, or ""


def ways(
    world: World, mutual: set[int], unreached: Mapping[int, str], gpudirects: Sequence[Said]
) -> list[Way]:
    """Return how each rank is reached.

    Args:
        world: The ranks.
        mutual: Those whose GPU memory this one reaches, as they reach its own.
        unreached: Of the other ranks of this host, why this one does not reach theirs, or "".
        gpudirects: What each rank says of GPUDirect RDMA.
    """

    def way(peer: int) -> Way:
        if peer in mutual:
            return Way("cuda", "")
        if world.mapped[peer]:
            own = unreached.get(peer, "")
            return Way("shm", own or "it does not reach the memory of this rank's GPU")
        staged = _staged(gpudirects[world.rank].why(peer), gpudirects[peer].why(world.rank))
        return Way(world.transport if staged else f"{world.transport}+gpu", staged)

    return [way(peer) for peer in range(world.size)]


def _staged(mine: str, theirs: str) -> str:
    """Return why data does not go from GPU to GPU, there and back, or ""."""
    if mine == theirs:
        return mine and f"staged at both ends: {mine}"
    ends = {"here": mine, "at its end": theirs}
    return "; ".join(f"staged {where}: {missing}" for where, missing in ends.items() if missing)


def told(rank: int, reach: Sequence[str], lacks: Sequence[str]) -> list[str]:
    """Say it in lines, ranks together that are reached alike: "rank 3 by verbs+gpu"."""
    alike: dict[Way, list[int]] = {}
    for peer, way in enumerate(map(Way, reach, lacks)):
        if peer != rank:
            alike.setdefault(way, []).append(peer)
    return [
        f"{rank_list(peers)} by {way.how}{way.lack and f': {way.lack}'}"
        for way, peers in alike.items()
    ]
