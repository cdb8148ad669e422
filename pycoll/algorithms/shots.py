"""All-reduce in one or two exchanges among all ranks: few steps, for small messages."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def one_shot(b: ScheduleBuilder) -> None:
    """Send the whole input to all; everyone folds in rank order.

    Chunks: 1.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 of the data sent per rank.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997, with size - 1 ports.
    """
    b.chunks(1)
    for k in range(1, b.size):  # from the next rank on, so that no rank is everyone's first
        b.send(b.input[:], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[:], frm=range(b.size))


@algorithm(allreduce)
def two_shot(b: ScheduleBuilder) -> None:
    """Rank i folds chunk i of all, in rank order, and sends the result to all.

    Chunks: size.
    Needs: any size.
    Cost: 2(size > 1) steps; 2(size - 1)/size of the data sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    x, others = b.output, [(b.rank + k) % b.size for k in range(1, b.size)]
    for peer in others:
        b.send(x[peer], to=peer)
    b.recv_reduce(x[b.rank], frm=range(b.size))
    for peer in others:
        b.send(x[b.rank], to=peer)
    for peer in others:
        b.recv(x[peer], frm=peer)
