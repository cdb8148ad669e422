"""Reduce-scatter: everyone ends with the fold of all inputs' block of its own."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.halves import spans
from pycoll.algorithms.hierarchy import by_level
from pycoll.schedule import ScheduleBuilder, reduce_scatter


@algorithm(reduce_scatter)
def ring(b: ScheduleBuilder) -> None:
    """Hand a block round a ring, from the rank behind its owner to the owner.

    Chunks: size.
    Needs: any size.
    Cost: size - 1 steps; size - 1 blocks sent per rank.
    Source: Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    for k in range(1, b.size):
        b.send(b.output[b.rank - k], to=right)
        b.recv_reduce(b.output[b.rank - k - 1], frm=left)


@algorithm(reduce_scatter)
def recursive_halving(b: ScheduleBuilder) -> None:
    """Exchange half of the blocks with the peer at distance p/2, half of that at p/4, ...

    Chunks: size.
    Needs: any size; ranks from p on, the largest power of two in size, are folded in first.
    Cost: at most log2(p) + 2(size > p) steps; at most size blocks sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    p = 1 << (b.size.bit_length() - 1)
    x, has_extra = b.output, b.rank + p < b.size
    if b.rank >= p:
        b.send(x[:], to=b.rank - p)
        b.recv(x[b.rank], frm=b.rank - p)
        return
    if has_extra:
        b.recv_reduce(x[:], frm=b.rank + p)
    low, n = 0, p  # this rank is reducing blocks low to low + n, and those of their extra ranks
    while n > 1:
        n //= 2
        keep, give = (low + n, low) if b.rank & n else (low, low + n)
        for first, last in spans(give, n, b.size):
            b.send(x[first:last], to=b.rank ^ n)
        for first, last in spans(keep, n, b.size):
            b.recv_reduce(x[first:last], frm=b.rank ^ n)
        low = keep
    if has_extra:
        b.send(x[b.rank + p], to=b.rank + p)


@algorithm(reduce_scatter)
def bruck(b: ScheduleBuilder) -> None:
    """Bruck's all-gather backwards: give the far half of what is left to the rank it is for.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; size - 1 blocks sent per rank.
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv 2410.14234,
        2024.
    """
    left = b.size  # blocks that this rank still holds: from its own on
    while left > 1:
        distance = 1 << ((left - 1).bit_length() - 1)
        n = left - distance
        for chunks in b.output.around(b.rank + distance, n):
            b.send(chunks, to=(b.rank + distance) % b.size)
        for chunks in b.output.around(b.rank, n):
            b.recv_reduce(chunks, frm=(b.rank - distance) % b.size)
        left = distance


@algorithm(reduce_scatter)
def pat(b: ScheduleBuilder) -> None:
    """A binomial tree up to every rank, all at once; a message is one block, and none is kept.

    Chunks: size.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; size - 1 blocks sent per rank.
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale,
        arXiv 2506.20252, 2025.
    """
    distances = [1 << i for i in range((b.size - 1).bit_length())]
    # From the leaves to the root: in this order an edge never holds more than one message.
    for offset in range(b.size - 1, -1, -1):
        x, up = b.output[b.rank - offset], offset & -offset or b.size
        below = [d for d in distances if d < up and offset + d < b.size]
        b.recv_reduce(x, frm=[b.rank, *((b.rank + d) % b.size for d in below)])
        if offset:
            b.send(x, to=(b.rank - up) % b.size)


@algorithm(reduce_scatter)
def pairwise(b: ScheduleBuilder) -> None:
    """Exchange with the rank at distance 1, then 2, ...; one peer at a time.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    for k in range(1, b.size):
        b.send(b.input[b.rank + k], to=(b.rank + k) % b.size)
        b.recv_reduce(b.output[b.rank], frm=(b.rank - k) % b.size)


@algorithm(reduce_scatter)
def direct(b: ScheduleBuilder) -> None:
    """Send every block to its owner, who folds them in rank order.

    Chunks: size.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 blocks sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, all exchanges at once.
    """
    for k in range(1, b.size):  # from the next rank on, so that no rank is everyone's first
        b.send(b.input[b.rank + k], to=(b.rank + k) % b.size)
    b.recv_reduce(b.output[b.rank], frm=range(b.size))


@algorithm(reduce_scatter)
def hierarchical(b: ScheduleBuilder) -> None:
    """Fold in each group what each of its ranks takes further, then a ring between groups.

    Chunks: size.
    Needs: any size and placement; on a flat one it is ``ring``.
    Cost: nodes - 1 + (local > 1) steps; nodes - 1 + nodes*(local - 1) blocks sent per rank, with
        local ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical, ring, direct)
