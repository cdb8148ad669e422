"""Reduce-scatter in the fixed order, for where ``direct`` has too many peers on other hosts."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.runs import runs
from pycoll.schedule import ScheduleBuilder, reduce_scatter


@algorithm(reduce_scatter)
def ordered_hierarchical(b: ScheduleBuilder) -> None:
    """Through the hosts in order of rank: each rank of one folds some blocks, and hands them on.

    Chunks: size.
    Needs: any size and placement; on a flat one it is a chain.
    Cost: nodes - (size == 1) + (local > 1) steps; at most size blocks sent per rank, with local
        ranks in each of the nodes.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008, for the pipelined chain.
    """
    r, x = runs(b), b.output
    lane_of = {rank: lane for run in r.every for lane, rank in enumerate(run)}
    for run in r.every:
        for first in range(0, len(run), len(r.mine)):
            # A block for each rank here: what is sent to a rank is folded before there is more.
            blocks = run[first : first + len(r.mine)]
            for block in blocks:
                if r.owner(lane_of[block]) != b.rank:
                    b.send(x[block], to=r.owner(lane_of[block]))
            for block in blocks:
                lane = lane_of[block]
                if r.owner(lane) == b.rank:
                    b.recv_reduce(x[block], frm=[*r.before(lane), *r.mine])
                    for peer in r.behind(lane) or ((block,) if block != b.rank else ()):
                        b.send(x[block], to=peer)
    if r.last(lane_of[b.rank]) != b.rank:
        b.recv(x[b.rank], frm=r.last(lane_of[b.rank]))
