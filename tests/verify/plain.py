"""Simple algorithms for every collective, to try the pipeline on: linear ones, and relays."""

from __future__ import annotations

from pycoll.algorithms import Algorithm, algorithm
from pycoll.schedule import (
    ScheduleBuilder,
    allgather,
    alltoall,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)


def others(b: ScheduleBuilder) -> list[int]:
    """Return the other ranks, from the next one on."""
    return [(b.rank + k) % b.size for k in range(1, b.size)]


def subtree(b: ScheduleBuilder) -> tuple[int, list[tuple[int, int]]]:
    """Return the parent (-1: none) and (child, end of its ranks) in a binomial tree from 0."""
    bit, below = 1, []
    while not b.rank & bit and bit < b.size:
        child = b.rank + bit
        if child < b.size:
            below.append((child, min(child + bit, b.size)))
        bit *= 2
    return (b.rank - bit if b.rank else -1), below


def end(b: ScheduleBuilder) -> int:
    """Return the end of this rank's own ranks in the binomial tree."""
    return max([b.rank + 1, *(stop for _, stop in subtree(b)[1])])


@algorithm(broadcast)
def broadcast_linear(b: ScheduleBuilder) -> None:
    b.chunks(1)
    for peer in range(1, b.size):
        if b.rank == 0:
            b.send(b.input[0], to=peer)
        elif b.rank == peer:
            b.recv(b.output[0], frm=0)


@algorithm(broadcast)
def broadcast_binomial(b: ScheduleBuilder) -> None:
    b.chunks(2)
    parent, below = subtree(b)
    if parent >= 0:
        b.recv(b.output[:], frm=parent)
    for child, _ in reversed(below):
        b.send(b.output[:], to=child)


@algorithm(reduce)
def reduce_linear(b: ScheduleBuilder) -> None:
    b.chunks(1)
    if b.rank:
        b.send(b.input[0], to=0)
    else:
        b.recv_reduce(b.output[0], frm=range(b.size))


@algorithm(reduce)
def reduce_binomial(b: ScheduleBuilder) -> None:
    b.chunks(3)
    parent, below = subtree(b)
    b.recv_reduce(b.output[:], frm=[b.rank, *(child for child, _ in below)])
    if parent >= 0:
        b.send(b.output[:], to=parent)


@algorithm(allgather)
def allgather_ring(b: ScheduleBuilder) -> None:
    b.chunks(2 * b.size)
    for part in range(2):
        with b.channel(part):
            for k in range(b.size - 1):
                b.send(b.output[2 * (b.rank - k) + part], to=(b.rank + 1) % b.size)
                b.recv(b.output[2 * (b.rank - k - 1) + part], frm=(b.rank - 1) % b.size)


@algorithm(allgather)
def allgather_linear(b: ScheduleBuilder) -> None:
    for peer in others(b):
        b.send(b.input[b.rank], to=peer)
    for peer in others(b):
        b.recv(b.output[peer], frm=peer)


@algorithm(allgather)
def allgather_bruck(b: ScheduleBuilder) -> None:
    have = 1
    while have < b.size:
        n = min(have, b.size - have)
        left, right = (b.rank - have) % b.size, (b.rank + have) % b.size
        for piece in b.output.around(b.rank, n):
            b.send(piece, to=left)
        for piece in b.output.around(b.rank + have, n):
            b.recv(piece, frm=right)
        have += n


@algorithm(reduce_scatter)
def reduce_scatter_ring(b: ScheduleBuilder) -> None:
    for k in range(b.size - 1):
        b.send(b.output[b.rank - k - 1], to=(b.rank + 1) % b.size)
        b.recv_reduce(b.output[b.rank - k - 2], frm=(b.rank - 1) % b.size)


@algorithm(reduce_scatter)
def reduce_scatter_linear(b: ScheduleBuilder) -> None:
    b.chunks(3 * b.size)
    for peer in others(b):
        b.send(b.input[3 * peer : 3 * peer + 3], to=peer)
    b.recv_reduce(b.output[3 * b.rank : 3 * b.rank + 3], frm=range(b.size))


@algorithm(reduce_scatter)
def reduce_scatter_halving(b: ScheduleBuilder) -> None:
    """Ranks from the largest power of two on give all to a partner and get their block back."""
    p = 1 << (b.size.bit_length() - 1)
    twin = b.rank + p
    if b.rank >= p:
        b.send(b.output[:], to=b.rank - p)
        b.recv(b.output[b.rank], frm=b.rank - p)
        return
    if twin < b.size:
        b.recv_reduce(b.output[:], frm=twin)
    low, n = 0, p
    while n > 1:
        n //= 2
        keep, give = (low + n, low) if b.rank & n else (low, low + n)
        for first in (0, p):  # blocks of these ranks, then of their twins
            if first + give < b.size:
                theirs = b.output[first + give : min(first + give + n, b.size)]
                b.send(theirs, to=b.rank ^ n)
            if first + keep < b.size:
                mine = b.output[first + keep : min(first + keep + n, b.size)]
                b.recv_reduce(mine, frm=b.rank ^ n)
        low = keep
    if twin < b.size:
        b.send(b.output[twin], to=twin)


@algorithm(alltoall)
def alltoall_linear(b: ScheduleBuilder) -> None:
    b.copy(b.input[b.rank], b.output[b.rank])
    for peer in others(b):
        b.send(b.input[peer], to=peer)
    for peer in others(b):
        b.recv(b.output[peer], frm=peer)


@algorithm(alltoall)
def alltoall_bruck(b: ScheduleBuilder) -> None:
    x = b.scratch
    for k in range(b.size):  # place k: what goes k ranks on
        b.copy(b.input[b.rank + k], x[k])
    bit = 1
    while bit < b.size:
        for k in (k for k in range(b.size) if k & bit):
            b.send(x[k], to=(b.rank + bit) % b.size)
            b.recv(x[k], frm=(b.rank - bit) % b.size)
        bit *= 2
    for k in range(b.size):
        b.copy(x[k], b.output[b.rank - k])


@algorithm(alltoall)
def alltoall_turned(b: ScheduleBuilder) -> None:
    """The same through the output, in ranges of places that are not those of the chunks."""
    for piece in b.input.around(b.rank, b.size):
        start = (piece.place - b.rank) % b.size
        b.copy(piece, b.output[start : start + piece.nchunks])
    half = (b.size + 1) // 2
    if b.size > 1:  # by the way of a neighbour and back
        b.send(b.output[:half], to=(b.rank + 1) % b.size)
        b.recv(b.scratch[0:half], frm=(b.rank - 1) % b.size)
        b.send(b.scratch[0:half], to=(b.rank - 1) % b.size)
        b.recv(b.output[:half], frm=(b.rank + 1) % b.size)
    for k in range(1, b.size):
        b.send(b.output[k], to=(b.rank + k) % b.size)
    for k in range(b.size):
        b.copy(b.output[k], b.scratch[b.size + k])
    b.copy(b.scratch[b.size], b.output[b.rank])
    for k in range(1, b.size):
        b.recv(b.output[b.rank - k], frm=(b.rank - k) % b.size)


@algorithm(gather)
def gather_linear(b: ScheduleBuilder) -> None:
    if b.rank:
        b.send(b.input[b.rank], to=0)
    else:
        for peer in others(b):
            b.recv(b.output[peer], frm=peer)


@algorithm(gather)
def gather_binomial(b: ScheduleBuilder) -> None:
    parent, below = subtree(b)
    for child, stop in below:
        b.recv(b.output[child:stop], frm=child)
    if parent >= 0:
        b.send(b.output[b.rank : end(b)], to=parent)


@algorithm(scatter)
def scatter_linear(b: ScheduleBuilder) -> None:
    if b.rank:
        b.recv(b.output[b.rank], frm=0)
    else:
        for peer in others(b):
            b.send(b.input[peer], to=peer)


@algorithm(scatter)
def scatter_binomial(b: ScheduleBuilder) -> None:
    parent, below = subtree(b)
    if parent >= 0:
        b.recv(b.output[b.rank : end(b)], frm=parent)
    for child, stop in reversed(below):
        b.send(b.output[child:stop], to=child)


PLAIN: tuple[Algorithm, ...] = (
    broadcast_linear,
    broadcast_binomial,
    reduce_linear,
    reduce_binomial,
    allgather_ring,
    allgather_linear,
    allgather_bruck,
    reduce_scatter_ring,
    reduce_scatter_linear,
    reduce_scatter_halving,
    alltoall_linear,
    alltoall_bruck,
    alltoall_turned,
    gather_linear,
    gather_binomial,
    scatter_linear,
    scatter_binomial,
)
