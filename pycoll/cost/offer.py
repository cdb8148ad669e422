"""Offer: which algorithms the choice offers among many ranks; all may be asked for by name.

A rank's memory for an edge is touched when the edge is used, and each peer that it shares memory
with is mapped. So where there are many ranks an algorithm in which one of them has more than some
peers is not offered: with a thousand ranks of one host a thousand peers each would be a million
mappings. Those are also the algorithms that fold what all others send in one absolute order, which
is not the same from every rank, so that their proof takes all ranks. Algorithms whose ranks differ,
and which move too many chunks to be proved rank by rank, are not offered either.
"""

from __future__ import annotations

from pycoll.cost.machine import Machine
from pycoll.cost.outline import outline
from pycoll.errors import counted
from pycoll.program.isa import CHUNK_UNIT
from pycoll.schedule import Algorithm
from pycoll.schedule.placement import FLAT, Placement

#: Up to so many ranks, all may be each other's peers: so many can be proved one by one.
FEW_RANKS = 256
#: Peers of a rank beyond that on its own host, each of whose memory it maps; a hierarchical
#: algorithm has all of its host.
MOST_NEAR = 64
#: Up to so many ranks each message fits a slot, and so nothing needs to be looked at.
TINY_RANKS = 64


def refused(
    algorithm: Algorithm, machine: Machine, placement: Placement = FLAT, unproved: bool = False
) -> str:
    """Return why an algorithm is not offered; "" if it is.

    Args:
        algorithm: Of which this is asked.
        machine: Where it would run.
        placement: Of its ranks.
        unproved: What takes too long to prove may run.

    Raises:
        ScheduleError: It does not serve so many ranks.
    """
    if machine.size <= TINY_RANKS:
        return ""
    found = outline(algorithm, machine.size, placement, machine.hosts)
    if found.size > FEW_RANKS:
        for n, most, where in (
            (found.near, MOST_NEAR, " on one host" if machine.hosts else ""),
            (found.peers, FEW_RANKS - 1, ""),
        ):
            if n > most:
                least = "" if found.whole else "at least "
                return f"touches {least}{counted(n, 'peer')}{where}, more than {most}"
    message = machine.message_bytes(found.most_edges, found.widest)
    if found.widest * CHUNK_UNIT > message:
        return (
            f"sends {found.widest} chunks at once, more than the {message // CHUNK_UNIT} that a "
            "slot holds"
        )
    if unproved or found.ranks:
        return ""
    # Where hosts differ no rank stands for all in a simulation; a proof knows of no hosts.
    if not outline(algorithm, machine.size, placement, ()).ranks:
        from pycoll.verify.gate import LIMIT, chunks_moved  # slow to load, and rarely needed

        moved = chunks_moved(algorithm, machine.size, placement)
        if moved > LIMIT:
            return (
                f"takes too long to prove: its ranks do not all do the same, and they move {moved} "
                f"chunks, more than {LIMIT}"
            )
    return ""
