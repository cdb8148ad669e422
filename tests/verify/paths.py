"""Random algorithms for every collective but all-reduce, right by construction.

Each piece of the message goes its own way, a random tree or path on a channel of its own choice.
A way is a list of transfers; the ways are merged at random into one order that all ranks keep.
So the first transfer that is not done can always be done, whatever the number of slots.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

from pycoll.algorithms import Algorithm, algorithm
from pycoll.schedule import COLLECTIVES, ScheduleBuilder


class Transfer(NamedTuple):
    """Chunks [low, high) from one rank to another."""

    source: int
    target: int
    low: int
    high: int
    channel: int
    folds: bool = False
    aside: int = -1  #: all-to-all: place of scratch that the source sends from
    into: int = -1  #: all-to-all: place of scratch that the target receives into


Way = list[Transfer]


def tree(r: random.Random, size: int, root: int) -> list[tuple[int, int]]:
    """Return (parent, child) of a random tree, parents first."""
    rest = [rank for rank in range(size) if rank != root]
    r.shuffle(rest)
    reached, edges = [root], []
    for rank in rest:
        edges.append((r.choice(reached), rank))
        reached.append(rank)
    return edges


def path(r: random.Random, size: int, source: int, target: int) -> list[int]:
    """Return ranks from source to target by way of some others."""
    between = [rank for rank in range(size) if rank not in (source, target)]
    via = r.sample(between, r.randint(0, min(2, len(between))))
    return [source, *via, target] if source != target else [source]


def ways(r: random.Random, name: str, size: int, cuts: list[tuple[int, int]]) -> list[Way]:
    """Return how each piece gets to where it must be; piece i is block i if there are several."""
    found = []
    for block, (low, high) in enumerate(cuts):
        channel = r.randrange(4)
        if name in ("broadcast", "allgather"):
            edges = tree(r, size, 0 if name == "broadcast" else block)
            way = [Transfer(a, b, low, high, channel) for a, b in edges]
        elif name in ("reduce", "reduce_scatter"):
            edges = tree(r, size, 0 if name == "reduce" else block)[::-1]
            way = [Transfer(b, a, low, high, channel, folds=True) for a, b in edges]
        else:
            ends = (block, 0) if name == "gather" else (0, block)
            ranks = path(r, size, *ends)
            way = [Transfer(a, b, low, high, channel) for a, b in pairwise(ranks)]
        found.append(way)
    return found


def crossings(r: random.Random, size: int) -> list[Way]:
    """Return the ways of an all-to-all: any block may go by way of other ranks' scratch."""
    found = []
    for source in range(size):
        for target in range(size):
            ranks, place, channel = (
                path(r, size, source, target),
                source * size + target,
                r.randrange(4),
            )
            last = len(ranks) - 2
            found.append(
                [
                    Transfer(
                        *(ranks[k], ranks[k + 1], target, source, channel),
                        aside=place if k else -1,
                        into=place if k < last else -1,
                    )
                    for k in range(last + 1)
                ]
            )
    return found


def merge(r: random.Random, found: list[Way]) -> Way:
    """Return all transfers in one order that keeps each way's."""
    left, merged = [way[::-1] for way in found if way], []
    while left:
        way = r.choice(left)
        merged.append(way.pop())
        left = [way for way in left if way]
    return merged


def generate(seed: int) -> tuple[Algorithm, int]:
    """Return a correct algorithm and the one size that it is made for."""
    r = random.Random(seed)
    name = r.choice([n for n in COLLECTIVES if n != "allreduce"])
    size = r.randint(2, 7)
    if name == "alltoall":
        nchunks, order = size, merge(r, crossings(r, size))
    else:
        npieces = size if COLLECTIVES[name].blocks == "rank" else r.randint(1, 4)
        width = r.randint(1, 3)
        cuts = [(width * k, width * (k + 1)) for k in range(npieces)]
        nchunks, order = width * npieces, merge(r, ways(r, name, size, cuts))
    by_scratch = {t for t in order if t.folds and r.random() < 0.2}
    move = across if name == "alltoall" else along

    @algorithm(name)
    def generated(b: ScheduleBuilder) -> None:
        b.chunks(nchunks)
        if name == "alltoall":
            b.copy(b.input[b.rank], b.output[b.rank])
        for t in order:
            with b.channel(t.channel):
                move(b, t, t in by_scratch)

    return generated, size


def along(b: ScheduleBuilder, t: Transfer, by_scratch: bool) -> None:
    x = b.output[t.low : t.high]
    if b.rank == t.source:
        b.send(x, to=t.target)
    elif b.rank == t.target and by_scratch:
        held = b.scratch[t.channel * b.nchunks : t.channel * b.nchunks + x.nchunks]
        b.recv(held, frm=t.source)
        b.reduce(held, into=x)
    elif b.rank == t.target:
        (b.recv_reduce if t.folds else b.recv)(x, frm=t.source)


def across(b: ScheduleBuilder, t: Transfer, by_scratch: bool) -> None:
    """The ends of an all-to-all's transfer: `low` is the block at its source, `high` at its end."""
    if b.rank == t.source:
        b.send(b.input[t.low] if t.aside < 0 else b.scratch[t.aside], to=t.target)
    elif b.rank == t.target:
        b.recv(b.output[t.high] if t.into < 0 else b.scratch[t.into], frm=t.source)
