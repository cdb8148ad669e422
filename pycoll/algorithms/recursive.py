"""All-reduce by exchanges with ever more distant partners; any number of ranks."""

from __future__ import annotations

from pycoll.algorithms.decorator import algorithm
from pycoll.schedule import ScheduleBuilder, allreduce


@algorithm(allreduce)
def recursive_doubling(b: ScheduleBuilder) -> None:
    """Exchange everything with the partner at distance 1, 2, 4, ...

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
