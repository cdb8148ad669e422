"""Scatter: everyone ends with its block of the root's. The root is rank 0; others renumbered."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, scatter


@algorithm(scatter)
def binomial(b: ScheduleBuilder) -> None:
    """Send half of the blocks there are to the rank at half the distance, half of the rest, ...

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; size - 1 blocks sent per rank.
    Source: Johnsson and Ho, IEEE Transactions on Computers 38(9), 1989.
    """
    x, up = b.output, b.rank & -b.rank or 1 << (b.size - 1).bit_length()
    if b.rank:
        b.recv(x[b.rank : min(b.rank + up, b.size)], frm=b.rank - up)
    while up > 1:
        up //= 2
        if b.rank + up < b.size:
            b.send(x[b.rank + up : min(b.rank + 2 * up, b.size)], to=b.rank + up)


@algorithm(scatter)
def direct(b: ScheduleBuilder) -> None:
    """The root sends everyone its block.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Saad and Schultz, Parallel Computing 11(2), 1989.
    """
    if b.rank:
        b.recv(b.output[b.rank], frm=0)
        return
    for peer in range(1, b.size):
        b.send(b.input[peer], to=peer)
