"""Reduce: the root ends with the fold of all inputs. The root is rank 0; others are renumbered."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.hierarchy import by_level
from pycoll.algorithms.tree import rooted
from pycoll.schedule import ScheduleBuilder, reduce


@algorithm(reduce)
def binomial(b: ScheduleBuilder) -> None:
    """Fold what the ranks at distance 1, 2, 4, ... have folded, then send it on.

    Chunks: 1.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; (size > 1) of the data sent per rank.
    Source: Johnsson and Ho, IEEE Transactions on Computers 38(9), 1989.
    """
    b.chunks(1)
    x, up = b.output[:], b.rank & -b.rank or 1 << (b.size - 1).bit_length()
    below = [b.rank + (1 << i) for i in range(up.bit_length() - 1)]
    b.recv_reduce(x, frm=[b.rank, *(peer for peer in below if peer < b.size)])
    if b.rank:
        b.send(x, to=b.rank - up)


@algorithm(reduce)
def chain(b: ScheduleBuilder) -> None:
    """Fold from rank to rank; the tiles of a long message are on every link at once.

    Chunks: 1.
    Needs: any size.
    Cost: size - 1 steps; (size > 1) of the data sent per rank.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008.
    """
    b.chunks(1)
    if b.rank + 1 < b.size:
        b.recv_reduce(b.output[:], frm=b.rank + 1)
    if b.rank:
        b.send(b.output[:], to=b.rank - 1)


@algorithm(reduce)
def double_binary_tree(b: ScheduleBuilder) -> None:
    """Fold each half up its own tree; inner ranks of one tree are leaves of the other.

    Chunks: 2, one a tree.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; (size > 1) of the data sent per rank.
    Source: Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
    """
    b.chunks(2)
    for tree in range(2):
        above, below = rooted(tree, b.rank, b.size)
        with b.channel(tree):
            b.recv_reduce(b.output[tree], frm=[b.rank, *below])
            for peer in above:
                b.send(b.output[tree], to=peer)


@algorithm(reduce)
def reduce_scatter_gather(b: ScheduleBuilder) -> None:
    """Reduce-scatter by halving the range, then gather up a binomial tree.

    Chunks: p, the largest power of two in size.
    Needs: any size; ranks from p on are folded in first.
    Cost: at most 2log2(p) + (size > p) steps; at most 3/2 of the data sent per rank.
    Source: Rabenseifner, ICCS 2004, LNCS 3036.
    """
    p = 1 << (b.size.bit_length() - 1)
    b.chunks(p)
    x = b.output
    if b.rank >= p:
        b.send(x[:], to=b.rank - p)
        return
    if b.rank + p < b.size:
        b.recv_reduce(x[:], frm=b.rank + p)
    low, n = 0, p  # this rank is reducing x[low : low + n]
    while n > 1:
        n //= 2
        keep, give = (low + n, low) if b.rank & n else (low, low + n)
        b.send(x[give : give + n], to=b.rank ^ n)
        b.recv_reduce(x[keep : keep + n], frm=b.rank ^ n)
        low = keep
    while n < p and not b.rank & n:
        b.recv(x[low + n : low + 2 * n], frm=b.rank + n)
        n *= 2
    if b.rank:
        b.send(x[low : low + n], to=b.rank - n)


@algorithm(reduce)
def two_shot(b: ScheduleBuilder) -> None:
    """Each other rank folds a part of all, in rank order, and sends it to the root.

    Chunks: size - 1 + (size == 1), one for each rank but the root.
    Needs: any size.
    Cost: 2(size > 1) steps; (size > 1) of the data sent per rank.
    Source: Chan, Heimlich, Purkayastha and van de Geijn, Concurrency and Computation 19(13), 2007.
    """
    others = max(1, b.size - 1)
    b.chunks(others)
    x, mine = b.output, b.rank - 1
    for k in range(b.size - 1):
        peer = (b.rank + k) % others + 1
        if peer != b.rank:
            b.send(x[peer - 1], to=peer)
    if b.rank:
        b.recv_reduce(x[mine], frm=range(b.size))
        b.send(x[mine], to=0)
    else:
        for peer in range(1, b.size):
            b.recv(x[peer - 1], frm=peer)


@algorithm(reduce)
def direct(b: ScheduleBuilder) -> None:
    """Send it to the root, who folds in rank order.

    Chunks: 1.
    Needs: any size.
    Cost: (size > 1) steps; (size > 1) of the data sent per rank.
    Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Cluster Computing 10(2),
        2007.
    """
    b.chunks(1)
    if b.rank:
        b.send(b.input[:], to=0)
    else:
        b.recv_reduce(b.output[:], frm=range(b.size))


@algorithm(reduce)
def hierarchical(b: ScheduleBuilder) -> None:
    """Fold in each group, then up a binomial tree between one rank of each group.

    Chunks: 1.
    Needs: any size and placement; on a flat one it is ``binomial``.
    Cost: at most ceil(log2(nodes)) + (local > 1) steps; (size > 1) of the data sent per rank, with
        local ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical, binomial, direct)


@algorithm(reduce)
def hierarchical_chain(b: ScheduleBuilder) -> None:
    """A chain through each group, and a chain between the last rank of each.

    Chunks: 1.
    Needs: any size and placement; on a flat one it is ``chain``.
    Cost: nodes + local - 2 steps; (size > 1) of the data sent per rank, with local ranks in each of
        the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical_chain, chain, chain)
