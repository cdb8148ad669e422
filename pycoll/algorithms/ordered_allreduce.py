"""All-reduce in the fixed order, for where ``one_shot`` and ``two_shot`` have too many peers."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.runs import Runs, alone, runs
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def ordered_chain(b: ScheduleBuilder) -> None:
    """Fold from rank 0 to the last one, and send the result back; up and down tiles overlap.

    Chunks: 1.
    Needs: any size.
    Cost: 2(size - 1) steps; at most 2 of the data sent per rank.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008, for the pipelined chain.
    """
    there_and_back(b, alone(b))


@algorithm(allreduce)
def ordered_hierarchical(b: ScheduleBuilder) -> None:
    """Through the hosts in order of rank: each rank of one folds a share of all, and hands it on.

    Chunks: local, where groups are equal; fewer where their ranks alternate.
    Needs: any size and placement; on a flat one it is ``ordered_chain``.
    Cost: 2(local > 1) + 2(nodes - 1) steps; at most 2 of the data sent per rank, with local ranks
        in each of the nodes.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008, for the pipelined chain.
    """
    there_and_back(b, runs(b))


def there_and_back(b: ScheduleBuilder, r: Runs) -> None:
    """Fold every lane from the first run to the last, and give everyone the result."""
    b.chunks(r.lanes)
    x, place = b.output, r.mine.index(b.rank)
    lanes = [(place + k) % len(r.mine) for k in range(len(r.mine))]  # its own first
    others = [lane for lane in lanes[1:] if lane < r.lanes]
    with b.channel(0):
        for lane in others:
            b.send(x[lane], to=r.owner(lane))
        if place < r.lanes:
            b.recv_reduce(x[place], frm=[*r.before(place), *r.mine])
            for peer in r.behind(place):
                b.send(x[place], to=peer)
    with b.channel(1):
        if place < r.lanes:
            for peer in r.behind(place):
                b.recv(x[place], frm=peer)
            for peer in (*r.before(place), *(r.mine[lane] for lane in lanes[1:])):
                b.send(x[place], to=peer)
        for lane in others:
            b.recv(x[lane], frm=r.owner(lane))
