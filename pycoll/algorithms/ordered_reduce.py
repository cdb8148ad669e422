"""Reduce in the fixed order, which begins at the root, for where ``direct`` has too many peers."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.runs import Runs, alone, runs
from pycoll.schedule import ScheduleBuilder, reduce


@algorithm(reduce)
def ordered_chain(b: ScheduleBuilder) -> None:
    """Fold from the root to the rank before it, which sends the root the result.

    Chunks: size.
    Needs: any size.
    Cost: size - (size == 1) steps; (size > 1) of the data sent per rank.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008, for the pipelined chain.
    """
    there(b, alone(b))


@algorithm(reduce)
def ordered_hierarchical(b: ScheduleBuilder) -> None:
    """Through the hosts in order of rank: each rank of one folds a share of all, and hands it on.

    Chunks: size, where groups are equal.
    Needs: any size and placement; on a flat one it is ``ordered_chain``.
    Cost: nodes - (size == 1) + (local > 1) steps; (size > 1) of the data sent per rank, with local
        ranks in each of the nodes.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008, for the pipelined chain.
    """
    there(b, runs(b))


def there(b: ScheduleBuilder, r: Runs) -> None:
    """Fold every lane from the first run to the last, which sends it to the root.

    Ranks but the root hold a fold in scratch, which has one channel. So the root sends a chunk for
    each run before it waits for the first result: meanwhile all runs have something to do.
    """
    depth = len(r.every)
    b.chunks(r.lanes * depth)
    x, place = b.output, r.mine.index(b.rank)
    mine = [(place + k) % len(r.mine) for k in range(1, len(r.mine))]  # first the next rank's
    for k in range(depth):
        for lane in (lane for lane in mine if lane < r.lanes):
            b.send(x[lane * depth + k], to=r.owner(lane))
        if place < r.lanes:
            chunk = x[place * depth + k]
            b.recv_reduce(chunk, frm=[*r.before(place), *r.mine])
            for peer in r.behind(place) or ((0,) if b.rank else ()):
                b.send(chunk, to=peer)
    if b.rank == 0 and b.size > 1:
        for k in range(depth):
            for lane in range(r.lanes):
                b.recv(x[lane * depth + k], frm=r.last(lane))
