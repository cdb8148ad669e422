"""All-gather: everyone ends with everyone's block."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.halves import spans
from pycoll.algorithms.hierarchy import by_level
from pycoll.schedule import ScheduleBuilder, allgather


@algorithm(allgather)
def ring(b: ScheduleBuilder) -> None:
    """Hand every block round a ring.

    Chunks: size.
    Needs: any size.
    Cost: size - 1 steps; size - 1 blocks sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    for k in range(b.size - 1):
        b.send(b.output[b.rank - k], to=right)
        b.recv(b.output[b.rank - k - 1], frm=left)


@algorithm(allgather)
def recursive_doubling(b: ScheduleBuilder) -> None:
    """Exchange all there is with the peer at distance 1, 2, 4, ...

    Chunks: size.
    Needs: any size; ranks from p on, the largest power of two in size, give their block first.
    Cost: at most log2(p) + 2(size > p) steps; at most (1 + 2(size > p))*(size - 1) blocks sent per
        rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    p = 1 << (b.size.bit_length() - 1)
    x, extra = b.output, b.rank + p
    if b.rank >= p:
        b.send(x[b.rank], to=b.rank - p)
        for chunks in x.around(b.rank + 1, b.size - 1):
            b.recv(chunks, frm=b.rank - p)
        return
    if extra < b.size:
        b.recv(x[extra], frm=extra)
    n = 1  # this rank holds n blocks, aligned, and those of their extra ranks
    while n < p:
        low = b.rank & -n
        for first, last in spans(low, n, b.size):
            b.send(x[first:last], to=b.rank ^ n)
        for first, last in spans(low ^ n, n, b.size):
            b.recv(x[first:last], frm=b.rank ^ n)
        n *= 2
    if extra < b.size:
        for chunks in x.around(extra + 1, b.size - 1):
            b.send(chunks, to=extra)


@algorithm(allgather)
def bruck(b: ScheduleBuilder) -> None:
    """Send all there is to the rank at distance 1, 2, 4, ... behind; round the end of the ranks.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; size - 1 blocks sent per rank.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997.
    """
    distance = 1  # this rank holds as many blocks, from its own on
    while distance < b.size:
        n = min(distance, b.size - distance)
        for chunks in b.output.around(b.rank, n):
            b.send(chunks, to=(b.rank - distance) % b.size)
        for chunks in b.output.around(b.rank + distance, n):
            b.recv(chunks, frm=(b.rank + distance) % b.size)
        distance *= 2


@algorithm(allgather)
def pat(b: ScheduleBuilder) -> None:
    """A binomial tree down from every rank, all at once; a message is one block.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; size - 1 blocks sent per rank.
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale,
        arXiv 2506.20252, 2025.
    """
    distances = [1 << i for i in range((b.size - 1).bit_length())]
    # From the root to the leaves: in this order an edge never holds more than one message.
    for offset in range(b.size):
        x, up = b.output[b.rank - offset], offset & -offset or b.size
        if offset:
            b.recv(x, frm=(b.rank - up) % b.size)
        for d in reversed(distances):  # the most distant first
            if d < up and offset + d < b.size:
                b.send(x, to=(b.rank + d) % b.size)


@algorithm(allgather)
def direct(b: ScheduleBuilder) -> None:
    """Send the own block to all.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997, with size - 1 ports.
    """
    others = [(b.rank + k) % b.size for k in range(1, b.size)]
    for peer in others:
        b.send(b.input[b.rank], to=peer)
    for peer in others:
        b.recv(b.output[peer], frm=peer)


@algorithm(allgather)
def hierarchical(b: ScheduleBuilder) -> None:
    """A ring between groups for each rank's block, then everything to the ranks of the group.

    Chunks: size.
    Needs: any size and placement; on a flat one it is ``ring``.
    Cost: nodes - 1 + (local > 1) steps; nodes - 1 + nodes*(local - 1) blocks sent per rank, with
        local ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical, ring, direct)
