"""Gather: the root ends with everyone's block. The root is rank 0; others are renumbered."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, gather


@algorithm(gather)
def binomial(b: ScheduleBuilder) -> None:
    """Collect from the ranks at distance 1, 2, 4, ..., then send all of it on.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; at most max(p/2, size - p) blocks sent per rank.
    Source: Johnsson and Ho, IEEE Transactions on Computers 38(9), 1989.
    """
    x, distance = b.output, 1
    while distance < b.size and not b.rank & distance:
        if b.rank + distance < b.size:
            end = min(b.rank + 2 * distance, b.size)
            b.recv(x[b.rank + distance : end], frm=b.rank + distance)
        distance *= 2
    if b.rank:
        b.send(x[b.rank : min(b.rank + distance, b.size)], to=b.rank - distance)


@algorithm(gather)
def direct(b: ScheduleBuilder) -> None:
    """Everyone sends its block to the root.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; (size > 1) blocks sent per rank.
    Source: Saad and Schultz, Parallel Computing 11(2), 1989.
    """
    if b.rank:
        b.send(b.input[b.rank], to=0)
        return
    for peer in range(1, b.size):
        b.recv(b.output[peer], frm=peer)
