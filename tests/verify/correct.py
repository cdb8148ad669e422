"""Random all-reduce algorithms that are right by construction.

The chunks are cut into groups; each group is reduced by a method of its own (ring, trees,
doubling, one or two exchanges, a star), over ranks in a random order, on the channels of its
lane. Groups of one lane follow each other, so each finds every edge as it was; lanes share no
channel and no chunk, and their steps are interleaved at random on every rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from pycoll.algorithms import Algorithm, algorithm
from pycoll.schedule import ScheduleBuilder, allreduce

Call = Callable[[ScheduleBuilder], None]


@dataclass
class Group:
    """Chunks [low, high) reduced among ``size`` ranks; calls are collected per rank."""

    r: random.Random
    size: int
    low: int
    high: int
    up: int  #: channel of the reduction
    down: int  #: channel of what follows
    calls: list[list[Call]] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [[] for _ in range(self.size)]

    def order(self) -> list[int]:
        return self.r.sample(range(self.size), self.size)

    def send(self, rank: int, low: int, high: int, to: int, channel: int) -> None:
        def call(b: ScheduleBuilder) -> None:
            with b.channel(channel):
                b.send(b.output[low:high], to=to)

        self.calls[rank].append(call)

    def recv(self, rank: int, low: int, high: int, frm: int, channel: int) -> None:
        def call(b: ScheduleBuilder) -> None:
            with b.channel(channel):
                b.recv(b.output[low:high], frm=frm)

        self.calls[rank].append(call)

    def fold(self, rank: int, low: int, high: int, frm: int | list[int], channel: int) -> None:
        by_scratch = isinstance(frm, int) and self.r.random() < 0.2

        def call(b: ScheduleBuilder) -> None:
            with b.channel(channel):
                if by_scratch:
                    assert isinstance(frm, int)
                    first = channel * b.nchunks  # scratch belongs to one channel
                    held = b.scratch[first + low : first + high]
                    b.recv(held, frm=frm)
                    b.reduce(held, into=b.output[low:high])
                else:
                    b.recv_reduce(b.output[low:high], frm=frm)

        self.calls[rank].append(call)


def ring(g: Group) -> None:
    order = g.order()
    cuts = pieces(g, g.size)
    for place, rank in enumerate(order):
        right, left = order[(place + 1) % g.size], order[place - 1]
        for k in range(g.size - 1):
            g.send(rank, *cuts[(place - k) % g.size], right, g.up)
            g.fold(rank, *cuts[(place - k - 1) % g.size], left, g.up)
        for k in range(g.size - 1):
            g.send(rank, *cuts[(place + 1 - k) % g.size], right, g.down)
            g.recv(rank, *cuts[(place - k) % g.size], left, g.down)


def trees(g: Group) -> None:
    """Reduce up one random tree, broadcast down another with the same root, piece by piece."""
    up, down = random_tree(g, None), None
    down = random_tree(g, up[0])
    cuts = pieces(g, g.r.randint(1, g.high - g.low))
    together = {rank: g.r.random() < 0.4 for rank in range(g.size)}
    # Both phases on one channel need an order that all ranks keep: first up, then down.
    phases = [cuts] if g.up == g.down else [[cut] for cut in cuts]
    for cut in phases:
        for low, high in cut:
            climb(g, up, low, high, together)
        for low, high in cut:
            for rank in range(g.size):
                if rank != down[0]:
                    g.recv(rank, low, high, down[1][rank], g.down)
                for child in children(down, rank):
                    g.send(rank, low, high, child, g.down)


Tree = tuple[int, dict[int, int]]  #: root, parent of every other rank


def climb(g: Group, tree: Tree, low: int, high: int, together: dict[int, bool]) -> None:
    for rank in range(g.size):
        below = children(tree, rank)
        g.r.shuffle(below)
        if together[rank] and below:
            order = [*below, rank]
            g.r.shuffle(order)
            g.fold(rank, low, high, order, g.up)
        else:
            for child in below:
                g.fold(rank, low, high, child, g.up)
        if rank != tree[0]:
            g.send(rank, low, high, tree[1][rank], g.up)


def random_tree(g: Group, root: int | None) -> Tree:
    order = g.order()
    if root is not None:
        order.remove(root)
        order.insert(0, root)
    reach = g.r.choice((1, 2, g.size))  # 1 is a path, size a random tree
    return order[0], {
        rank: g.r.choice(order[max(0, k - reach) : k]) for k, rank in enumerate(order) if k
    }


def children(tree: Tree, rank: int) -> list[int]:
    return [child for child, parent in tree[1].items() if parent == rank]


def doubling(g: Group) -> None:
    order = g.order()
    distances = [1 << k for k in range(g.size.bit_length() - 1)]
    g.r.shuffle(distances)
    for distance in distances:
        for place, rank in enumerate(order):
            partner = order[place ^ distance]
            g.send(rank, g.low, g.high, partner, g.up)
            g.fold(rank, g.low, g.high, partner, g.up)


def one_exchange(g: Group) -> None:
    folded = g.order()
    for rank in range(g.size):
        for peer in g.order():
            if peer != rank:
                g.send(rank, g.low, g.high, peer, g.up)
        g.fold(rank, g.low, g.high, folded, g.up)


def two_exchanges(g: Group) -> None:
    """Each piece has an owner, who folds it in an order of his own and sends it to all."""
    cuts = pieces(g, g.r.randint(1, min(g.size, g.high - g.low)))
    owners = dict(zip(g.order(), cuts, strict=False))
    for rank in range(g.size):
        for owner in g.r.sample(sorted(owners), len(owners)):
            if owner != rank:
                g.send(rank, *owners[owner], owner, g.up)
        if rank in owners:
            g.fold(rank, *owners[rank], g.order(), g.up)
            for peer in g.order():
                if peer != rank:
                    g.send(rank, *owners[rank], peer, g.down)
        for owner in g.r.sample(sorted(owners), len(owners)):
            if owner != rank:
                g.recv(rank, *owners[owner], owner, g.down)


def pieces(g: Group, n: int) -> list[tuple[int, int]]:
    """Cut the group's chunks into n ranges at random."""
    inner = sorted(g.r.sample(range(g.low + 1, g.high), n - 1))
    cuts = [g.low, *inner, g.high]
    return list(pairwise(cuts))


METHODS = (ring, trees, trees, doubling, one_exchange, two_exchanges)


def generate(seed: int) -> tuple[Algorithm, int]:
    """Return a correct algorithm and the one size that it is made for."""
    r = random.Random(seed)
    size = r.randint(2, 9)
    lanes = r.choice(([[0]], [[2]], [[0], [1]], [[0, 1]], [[0], [1, 3]], [[3], [0], [2, 1]]))
    streams: list[list[list[Call]]] = [[[] for _ in lanes] for _ in range(size)]
    low = 0
    for _ in range(r.randint(len(lanes), len(lanes) + 2)):
        lane = r.randrange(len(lanes))
        method = r.choice(METHODS)
        if method is doubling and size & (size - 1):
            method = trees
        width = r.randint(size, size + 3) if method is ring else r.randint(1, 4)
        up, down = r.choice(lanes[lane]), r.choice(lanes[lane])
        group = Group(r, size, low, low + width, up, down)
        method(group)
        low += width
        for rank in range(size):
            streams[rank][lane] += group.calls[rank]
    calls = [interleave(r, streams[rank]) for rank in range(size)]

    @algorithm(allreduce)
    def generated(b: ScheduleBuilder) -> None:
        b.chunks(low)
        for call in calls[b.rank]:
            call(b)

    return generated, size


def interleave(r: random.Random, streams: list[list[Call]]) -> list[Call]:
    """Merge streams, each in its own order; often in long runs, as a person would write."""
    left = [s[::-1] for s in streams if s]
    merged: list[Call] = []
    stays = r.choice((0.0, 0.5, 0.95))
    current = None
    while left:
        if current not in left or r.random() >= stays:
            current = r.choice(left)
        merged.append(current.pop())
        left = [s for s in left if s]
    return merged
