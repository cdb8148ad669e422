"""All-reduce: everyone ends with the fold of all inputs."""

from __future__ import annotations

from pycoll.algorithms.allgather import direct as direct_allgather
from pycoll.algorithms.broadcast import direct as direct_broadcast
from pycoll.algorithms.decorator import algorithm
from pycoll.algorithms.hierarchy import by_level
from pycoll.algorithms.reduce import direct as direct_reduce
from pycoll.algorithms.reduce_scatter import direct as direct_reduce_scatter
from pycoll.algorithms.tree import neighbours
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def ring(b: ScheduleBuilder) -> None:
    """Reduce-scatter, then all-gather, round a ring.

    Chunks: size.
    Needs: any size.
    Cost: 2(size - 1) steps; 2(size - 1)/size of the data sent per rank.
    Source: Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    right, left = (b.rank + 1) % b.size, (b.rank - 1) % b.size
    x = b.output  # in place: the input stands in the output
    for k in range(b.size - 1):
        b.send(x[b.rank - k], to=right)
        b.recv_reduce(x[b.rank - k - 1], frm=left)
    for k in range(b.size - 1):
        b.send(x[b.rank + 1 - k], to=right)
        b.recv(x[b.rank - k], frm=left)


@algorithm(allreduce)
def recursive_doubling(b: ScheduleBuilder) -> None:
    """Exchange everything with the peer at distance 1, 2, 4, ...

    Chunks: 1.
    Needs: any size; ranks from p on, the largest power of two in size, are folded in first.
    Cost: at most log2(p) + 2(size > p) steps;
        at most log2(p) + (size > p) of the data sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    b.chunks(1)
    x, p = b.output[:], 1 << (b.size.bit_length() - 1)
    if b.rank >= p:
        b.send(x, to=b.rank - p)
        b.recv(x, frm=b.rank - p)
        return
    has_extra = b.rank + p < b.size
    if has_extra:
        b.recv_reduce(x, frm=b.rank + p)
    distance = 1
    while distance < p:
        b.send(x, to=b.rank ^ distance)
        b.recv_reduce(x, frm=b.rank ^ distance)
        distance *= 2
    if has_extra:
        b.send(x, to=b.rank + p)


@algorithm(allreduce)
def halving_doubling(b: ScheduleBuilder) -> None:
    """Reduce-scatter by halving the range, then all-gather by doubling it.

    Chunks: p, the largest power of two in size.
    Needs: any size; ranks from p on are folded in first.
    Cost: at most 2log2(p) + 2(size > p) steps;
        at most 2(p - 1)/p + (size > p) of the data sent per rank.
    Source: Rabenseifner, ICCS 2004, LNCS 3036.
    """
    p = 1 << (b.size.bit_length() - 1)
    b.chunks(p)
    x, has_extra = b.output, b.rank + p < b.size
    if b.rank >= p:
        b.send(x[:], to=b.rank - p)
        b.recv(x[:], frm=b.rank - p)
        return
    if has_extra:
        b.recv_reduce(x[:], frm=b.rank + p)
    low, n = 0, p  # this rank is reducing x[low : low + n]
    while n > 1:
        n //= 2
        keep, give = (low + n, low) if b.rank & n else (low, low + n)
        b.send(x[give : give + n], to=b.rank ^ n)
        b.recv_reduce(x[keep : keep + n], frm=b.rank ^ n)
        low = keep
    while n < p:
        b.send(x[low : low + n], to=b.rank ^ n)
        b.recv(x[low ^ n : (low ^ n) + n], frm=b.rank ^ n)
        low, n = min(low, low ^ n), 2 * n
    if has_extra:
        b.send(x[:], to=b.rank + p)


@algorithm(allreduce)
def bruck(b: ScheduleBuilder) -> None:
    """Reduce-scatter by halving the distance, then all-gather by doubling it, without a remainder.

    Chunks: size.
    Needs: any size.
    Cost: at most 2ceil(log2(size)) steps; 2(size - 1)/size of the data sent per rank.
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv 2410.14234,
        2024.
    """
    x, distance = b.output, 1
    while 2 * distance < b.size:
        distance *= 2
    distances = []
    while distance and b.size > 1:
        distances.append(distance)
        n = min(distance, b.size - distance)
        for chunks in x.around(b.rank + distance, n):
            b.send(chunks, to=(b.rank + distance) % b.size)
        for chunks in x.around(b.rank, n):
            b.recv_reduce(chunks, frm=(b.rank - distance) % b.size)
        distance //= 2
    for distance in reversed(distances):
        n = min(distance, b.size - distance)
        for chunks in x.around(b.rank, n):
            b.send(chunks, to=(b.rank - distance) % b.size)
        for chunks in x.around(b.rank + distance, n):
            b.recv(chunks, frm=(b.rank + distance) % b.size)


@algorithm(allreduce)
def double_binary_tree(b: ScheduleBuilder) -> None:
    """Reduce each half up its own tree and send it down again; up and down tiles overlap.

    Chunks: 2, one a tree; inner ranks of one tree are leaves of the other.
    Needs: any size.
    Cost: at most 2ceil(log2(size)) steps; at most 2 of the data sent per rank.
    Source: Sanders, Speck and Träff, Parallel Computing 35(12), 2009.
    """
    b.chunks(2)
    for tree in range(2):
        # The second tree is the first one mirrored or, for odd sizes, shifted by one.
        flip = -1 if tree and b.size % 2 == 0 else 1
        parent, children = neighbours((flip * b.rank - tree) % b.size, b.size)
        above = [flip * (v + tree) % b.size for v in parent]
        below = [flip * (v + tree) % b.size for v in children]
        x = b.output[tree]
        with b.channel(2 * tree):
            b.recv_reduce(x, frm=[b.rank, *below])
            for peer in above:
                b.send(x, to=peer)
        with b.channel(2 * tree + 1):
            for peer in above:
                b.recv(x, frm=peer)
            for peer in below:
                b.send(x, to=peer)


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


@algorithm(allreduce)
def flat_tree(b: ScheduleBuilder) -> None:
    """Send everything to rank 0, which folds in rank order and sends the result to all.

    Chunks: 1.
    Needs: any size.
    Cost: 2(size > 1) steps; size - 1 of the data sent per rank.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
    """
    b.chunks(1)
    x, others = b.output[:], range(1, b.size)
    if b.rank:
        b.send(x, to=0)
        b.recv(x, frm=0)
        return
    b.recv_reduce(x, frm=range(b.size))
    for peer in others:
        b.send(x, to=peer)


@algorithm(allreduce)
def hierarchical(b: ScheduleBuilder) -> None:
    """Reduce-scatter in each group, a ring between groups for each share, all-gather in each group.

    Chunks: size, where groups are equal.
    Needs: any size and placement; on a flat one it is ``ring``.
    Cost: 2(local > 1) + 2(nodes - 1) steps; 2(local - 1)/local + 2(nodes - 1)/size of the data
        sent per rank, with local ranks in each of the nodes.
    Source: Cho, Finkler, Serrano, Kung and Hunter, BlueConnect, IBM Journal of R&D 63(6), 2019.
    """
    by_level(b, hierarchical, ring, direct_reduce_scatter, direct_allgather)


@algorithm(allreduce)
def hierarchical_tree(b: ScheduleBuilder) -> None:
    """As ``hierarchical``, with two binary trees between groups.

    Chunks: 2local, where groups are equal.
    Needs: any size and placement; on a flat one it is ``double_binary_tree``.
    Cost: at most 2(local > 1) + 2ceil(log2(nodes)) steps; at most 2(local - 1)/local + 2/local of
        the data sent per rank, with local ranks in each of the nodes.
    Source: Cho, Finkler, Serrano, Kung and Hunter, BlueConnect, IBM Journal of R&D 63(6), 2019.
    """
    by_level(b, hierarchical_tree, double_binary_tree, direct_reduce_scatter, direct_allgather)


@algorithm(allreduce)
def hierarchical_doubling(b: ScheduleBuilder) -> None:
    """Reduce to one rank of each group, recursive doubling between these, broadcast.

    Chunks: 1.
    Needs: any size and placement; on a flat one it is ``recursive_doubling``.
    Cost: at most 2(local > 1) + ceil(log2(nodes)) + 1 steps; at most ceil(log2(nodes)) + local - 1
        of the data sent per rank, with local ranks in each of the nodes.
    Source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan, IPDPS 2000.
    """
    by_level(b, hierarchical_doubling, recursive_doubling, direct_reduce, direct_broadcast)
