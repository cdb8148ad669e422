"""All-to-all: everyone has a block for everyone."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, alltoall


@algorithm(alltoall)
def pairwise(b: ScheduleBuilder) -> None:
    """Exchange with the ranks at distance 1, then 2, ...; one pair at a time.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    b.copy(b.input[b.rank], b.output[b.rank])
    for k in range(1, b.size):
        b.send(b.input[b.rank + k], to=(b.rank + k) % b.size)
        b.recv(b.output[b.rank - k], frm=(b.rank - k) % b.size)


@algorithm(alltoall)
def spread(b: ScheduleBuilder) -> None:
    """Send to all, each rank beginning with its next one, then receive from all.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Fan, Gilray, Pascucci, Huang, Micinski and Kumar, HPDC 2022.
    """
    for k in range(1, b.size):
        b.send(b.input[b.rank + k], to=(b.rank + k) % b.size)
    b.copy(b.input[b.rank], b.output[b.rank])  # while the others' blocks are on their way
    for k in range(1, b.size):
        b.recv(b.output[b.rank - k], frm=(b.rank - k) % b.size)


@algorithm(alltoall)
def bruck(b: ScheduleBuilder) -> None:
    """Blocks for the rank i further on travel the powers of two in i, with others as one message.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; at most size*ceil(log2(size))/2 blocks sent per rank.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997.
    """
    held = [b.input[b.rank + i] for i in range(b.size)]  # what still has to go i ranks further
    distance, free = 1, b.size // 2  # scratch is for one message, and from free on unused
    while distance < b.size:
        moving = [i for i in range(b.size) if i & distance]
        for place, i in enumerate(moving):
            b.copy(held[i], b.scratch[place])
        b.send(b.scratch[: len(moving)], to=(b.rank + distance) % b.size)
        b.recv(b.scratch[free : free + len(moving)], frm=(b.rank - distance) % b.size)
        for place, i in enumerate(moving, free):
            held[i] = b.scratch[place]
        distance, free = 2 * distance, free + len(moving)
    for i in range(b.size):
        b.copy(held[i], b.output[b.rank - i])


@algorithm(alltoall)
def direct(b: ScheduleBuilder) -> None:
    """Send to all in rank order, then receive from all in rank order.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Cluster Computing 10(2),
        2007.
    """
    others = [peer for peer in range(b.size) if peer != b.rank]
    for peer in others:
        b.send(b.input[peer], to=peer)
    b.copy(b.input[b.rank], b.output[b.rank])
    for peer in others:
        b.recv(b.output[peer], frm=peer)
