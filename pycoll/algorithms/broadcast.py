"""Broadcast: everyone ends with the root's input. The root is rank 0; others are renumbered."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.hierarchy import by_level
from pycoll.algorithms.tree import rooted
from pycoll.schedule import ScheduleBuilder, broadcast


@algorithm(broadcast)
def binomial(b: ScheduleBuilder) -> None:
    """Who has it sends it on, at half the distance each time.

    Chunks: 1.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; ceil(log2(size)) of the data sent per rank.
    Source: Johnsson and Ho, IEEE Transactions on Computers 38(9), 1989.
    """
    b.chunks(1)
    up = b.rank & -b.rank or 1 << (b.size - 1).bit_length()
    if b.rank:
        b.recv(b.output[:], frm=b.rank - up)
    while up > 1:
        up //= 2
        if b.rank + up < b.size:
            b.send(b.output[:], to=b.rank + up)


@algorithm(broadcast)
def chain(b: ScheduleBuilder) -> None:
    """Pass it from rank to rank; the tiles of a long message are on every link at once.

    Chunks: 1.
    Needs: any size.
    Cost: size - 1 steps; (size > 1) of the data sent per rank.
    Source: Patarasuk, Faraj and Yuan, JPDC 68(6), 2008.
    """
    b.chunks(1)
    if b.rank:
        b.recv(b.output[:], frm=b.rank - 1)
    if b.rank + 1 < b.size:
        b.send(b.output[:], to=b.rank + 1)


@algorithm(broadcast)
def double_binary_tree(b: ScheduleBuilder) -> None:
    """Send each half down its own tree; inner ranks of one tree are leaves of the other.

    Chunks: 2, one a tree.
    Needs: any size.
    Cost: at most ceil(log2(size)) steps; at most 1 of the data sent per rank.
    Source: Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
    """
    b.chunks(2)
    for tree in range(2):
        above, below = rooted(tree, b.rank, b.size)
        with b.channel(tree):
            for peer in above:
                b.recv(b.output[tree], frm=peer)
            for peer in below:
                b.send(b.output[tree], to=peer)


@algorithm(broadcast)
def scatter_allgather(b: ScheduleBuilder) -> None:
    """Scatter down a binomial tree, then all-gather round a ring; nobody gets a chunk twice.

    Chunks: size.
    Needs: any size.
    Cost: size - 1 steps; 2(size - 1)/size of the data sent per rank.
    Source: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, SHPCC 1994.
    """
    x, right, left = b.output, (b.rank + 1) % b.size, (b.rank - 1) % b.size

    def end(rank: int) -> int:  # the tree leaves chunks rank to end(rank) there
        return min(rank + (rank & -rank or b.size), b.size)

    up = b.rank & -b.rank or 1 << (b.size - 1).bit_length()
    if b.rank:
        b.recv(x[b.rank : end(b.rank)], frm=b.rank - up)
    while up > 1:
        up //= 2
        if b.rank + up < b.size:
            b.send(x[b.rank + up : end(b.rank + up)], to=b.rank + up)
    for k in range(b.size - 1):
        if not right <= (b.rank - k) % b.size < end(right):
            b.send(x[b.rank - k], to=right)
        if not b.rank <= (left - k) % b.size < end(b.rank):
            b.recv(x[left - k], frm=left)


@algorithm(broadcast)
def two_shot(b: ScheduleBuilder) -> None:
    """Send each other rank a part, which it sends to all the others.

    Chunks: size - 1 + (size == 1), one for each rank but the root.
    Needs: any size.
    Cost: at most 2(size > 1) steps; (size > 1) of the data sent per rank.
    Source: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, SHPCC 1994, with direct sends.
    """
    others = max(1, b.size - 1)
    b.chunks(others)
    x, mine = b.output, b.rank - 1
    if b.rank == 0:
        for i in range(b.size - 1):
            b.send(x[i], to=i + 1)
        return
    b.recv(x[mine], frm=0)
    for k in range(1, others):
        b.send(x[mine], to=(mine + k) % others + 1)
    for k in range(1, others):
        b.recv(x[mine + k], frm=(mine + k) % others + 1)


@algorithm(broadcast)
def direct(b: ScheduleBuilder) -> None:
    """The root sends it to all.

    Chunks: 1.
    Needs: any size.
    Cost: (size > 1) steps; size - 1 of the data sent per rank.
    Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Cluster Computing 10(2),
        2007.
    """
    b.chunks(1)
    if b.rank:
        b.recv(b.output[:], frm=0)
        return
    for peer in range(1, b.size):
        b.send(b.input[:], to=peer)


@algorithm(broadcast)
def hierarchical(b: ScheduleBuilder) -> None:
    """A binomial tree between one rank of each group, which sends it to its group.

    Chunks: 1.
    Needs: any size and placement; on a flat one it is ``binomial``.
    Cost: at most ceil(log2(nodes)) + (local > 1) steps; ceil(log2(nodes)) + local - 1 of the data
        sent per rank, with local ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical, binomial, direct)


@algorithm(broadcast)
def hierarchical_chain(b: ScheduleBuilder) -> None:
    """A chain between one rank of each group, and a chain from each through its group.

    Chunks: 1.
    Needs: any size and placement; on a flat one it is ``chain``.
    Cost: nodes + local - 2 steps; (nodes > 1) + (local > 1) of the data sent per rank, with local
        ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical_chain, chain, chain)
