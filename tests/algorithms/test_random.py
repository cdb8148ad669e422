"""Schedules that nobody wrote: trees drawn at random, in any channels, through scratch or not."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pycoll.algorithms import algorithm
from pycoll.dtypes import INT64, ReduceOp
from pycoll.program.lower import compile_all
from pycoll.program.reference import run
from pycoll.schedule import Algorithm, ScheduleBuilder, allreduce, dump, parse, schedule


def draw_algorithm(seed: int, size: int, nchunks: int) -> Algorithm:
    """Return an all-reduce: per chunk a random tree up and another one down."""
    draw = random.Random(seed)
    plans = []
    for chunk in range(nchunks):
        order = draw.sample(range(size), size)
        up = [(order[i], order[draw.randrange(i)]) for i in range(size - 1, 0, -1)]
        rest = draw.sample(order[1:], size - 1)
        reached, down = [order[0]], []
        for rank in rest:
            down.append((draw.choice(reached), rank))
            reached.append(rank)
        channels = draw.randrange(4), draw.randrange(4)
        plans.append((chunk, up, down, channels, draw.random() < 0.5))

    @algorithm(allreduce)
    def drawn(b: ScheduleBuilder) -> None:
        b.chunks(nchunks)
        for chunk, up, down, channels, staged in plans:
            x, aside = b.output[chunk], b.scratch[chunk]
            with b.channel(channels[0]):
                for source, target in up:
                    if b.rank == source:
                        b.send(x, to=target)
                    elif b.rank == target and staged:
                        b.recv(aside, frm=source)
                        b.reduce(aside, into=x)
                    elif b.rank == target:
                        b.recv_reduce(x, frm=source)
            with b.channel(channels[1]):
                for source, target in down:
                    if b.rank == source:
                        b.send(x, to=target)
                    elif b.rank == target:
                        b.recv(x, frm=source)

    return drawn


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 4), st.booleans(), st.booleans())
def test_any_trees_give_the_sum(
    seed: int, size: int, nchunks: int, in_place: bool, average: bool
) -> None:
    a = draw_algorithm(seed, size, nchunks)
    s = schedule(a, size)
    assert parse(dump(s)) == s
    data = [np.arange(60, dtype=np.int64) * size * (rank + 1) + rank for rank in range(size)]
    want = np.sum(data, axis=0) // (size if average else 1)
    op = ReduceOp.AVG if average else ReduceOp.SUM
    programs = compile_all(a, size, average=average)
    for out in run(programs, data, INT64, op, tile=64, in_place=in_place):
        np.testing.assert_array_equal(out, want)
