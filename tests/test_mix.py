"""Thousands of calls back to back that mix everything a user can mix; every bit is checked."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import pycoll
from pycoll.algorithms import names
from pycoll.communicator import Communicator
from pycoll.dtypes import BY_NAME, OPS
from pycoll.runtime.plan import cache as plans

pytestmark = pytest.mark.native

Array = npt.NDArray[Any]

DTYPES = tuple(name for name in BY_NAME if name != "bfloat16")  # which numpy has not
#: Most messages are small; the longest need several tiles, and a direct form where there is one.
COUNTS = (0, 1, 2, 3, 7, 10, 11, 16, 17, 64, 65, 200, 777, 1000, 4099, 20_000, 100_000)
WEIGHTS = (1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 2, 0.5, 0.8)
KINDS = 1500  #: more than the plans that a communicator keeps, so that some are made again
LONGEST = max(COUNTS)
SHIFTS = 64  #: a call's data begin at one of so many places of the tables
IN_FLIGHT = 6
POISON = 0xA5


class Kind(NamedTuple):
    """What all ranks ask for alike."""

    algorithm: str | None
    dtype: str
    op: str
    counts: tuple[int, ...]  #: of one array, or of a list's


def draw(random: random.Random) -> Kind:
    def count() -> int:
        return random.choices(COUNTS, WEIGHTS)[0]

    many = random.random() < 0.15
    return Kind(
        random.choice((None, *names("allreduce"))),
        random.choice(DTYPES),
        random.choice(list(OPS)),
        tuple(count() for _ in range(random.randint(1, 4))) if many else (count(),),
    )


@cache
def contribution(rank: int, dtype: str, op: str) -> Array:
    """What a rank brings: whole numbers, so small that every result is exact in every dtype."""
    i = np.arange(LONGEST + SHIFTS)
    wide = (i * 5 + i // 7 + rank) % 2 + 1 if op == "prod" else (i * 3 + i // 11 + 5 * rank) % 23
    return wide.astype(dtype)


@cache
def expected(size: int, dtype: str, op: str) -> Array:
    every = np.array([contribution(rank, dtype, op).astype("int64") for rank in range(size)])
    fold = {"min": np.min, "max": np.max, "prod": np.prod}.get(op, np.sum)
    total = fold(every, axis=0)
    if op != "avg":
        return total.astype(dtype)
    return (total / size if np.dtype(dtype).kind == "f" else total // size).astype(dtype)


class Mix:
    """One rank's side of the run."""

    def __init__(self, comm: Communicator, seed: int) -> None:
        self.comm, self.size = comm, comm.size
        self.shared = random.Random(seed)  # draws alike on all ranks
        self.own = random.Random(seed * 1000 + comm.rank)  # where the arrays lie is a rank's affair
        self.kinds = [draw(self.shared) for _ in range(KINDS)]
        self.heap = [comm.empty(LONGEST + 8, "float64").view(np.uint8) for _ in range(2)]
        self.works: deque[tuple[Any, Callable[[Any], None]]] = deque()
        self.bound: list[tuple[Any, Kind, list[Array], list[Array] | None]] = []
        self.seen: dict[str, int] = {}

    def run(self, calls: int) -> None:
        ways = {self.call: 60, self.queue: 20, self.again: 18, self.wait: 12, self.bind: 1.2}
        made = 0
        while made < calls:
            (way,) = self.shared.choices(list(ways), list(ways.values()))
            done = way()
            made += done
            self.seen[way.__name__] = self.seen.get(way.__name__, 0) + done
        while self.works:
            self.wait()

    # What can happen.

    def call(self) -> int:
        """A blocking call; queued ones may be under way."""
        kind, shift = self.some_kind()
        xs, outs = self.arrays(kind, self.shared.choice((True, False, None)))
        self.fill(kind, shift, xs)
        result = self.comm.allreduce(*given(kind, xs, outs), op=kind.op, algorithm=kind.algorithm)
        self.check(kind, shift, xs, outs, result)
        return 1

    def queue(self) -> int:
        """A call that goes on beside this thread."""
        if len(self.works) >= IN_FLIGHT:
            return 0
        kind, shift = self.some_kind()
        xs, outs = self.arrays(kind, False)
        self.fill(kind, shift, xs)
        x, out = given(kind, xs, outs)
        work = self.comm.allreduce(x, out, kind.op, async_op=True, algorithm=kind.algorithm)
        self.works.append((work, partial(self.check, kind, shift, xs, outs)))
        return 1

    def wait(self) -> int:
        if self.works:
            work, check = self.works.popleft()
            check(work.wait())
        return 0

    def bind(self) -> int:
        """A plan, kept with its arrays; an old one may have to go."""
        kind, _ = self.some_kind()
        xs, outs = self.arrays(kind, None, own=True)
        x, out = given(kind, xs, outs)
        plan = self.comm.plan("allreduce", x, out, kind.op, algorithm=kind.algorithm)
        self.bound.append((plan, kind, xs, outs))
        if len(self.bound) > 12:
            self.bound.pop(self.shared.randrange(12))
        return 0

    def again(self) -> int:
        """A call of a plan that was bound before."""
        if not self.bound:
            return 0
        plan, kind, xs, outs = self.shared.choice(self.bound)
        shift = self.shared.randrange(SHIFTS)
        self.fill(kind, shift, xs)
        for out in outs or ():
            out.view(np.uint8)[:] = POISON
        self.check(kind, shift, xs, outs, plan())
        return 1

    # Arrays.

    def some_kind(self) -> tuple[Kind, int]:
        """Often one of a few, so that cached plans are found too."""
        among = KINDS if self.shared.random() < 0.3 else 60
        return self.kinds[self.shared.randrange(among)], self.shared.randrange(SHIFTS)

    def arrays(
        self, kind: Kind, registered: bool | None, own: bool = False
    ) -> tuple[list[Array], list[Array] | None]:
        """Room for x and out, at any element; with None registered on some ranks only."""
        in_place = self.own.random() < 0.4
        where = self.own.random() < 0.5 if registered is None else registered
        xs = self.room(kind, 0, where, own)
        if in_place:
            return xs, None
        outs = self.room(kind, 1, where, own)
        for out in outs:
            out.view(np.uint8)[:] = POISON
        return xs, outs

    def room(self, kind: Kind, side: int, registered: bool, own: bool) -> list[Array]:
        if not registered or len(kind.counts) > 1:
            return [self.off(np.empty(n + 3, kind.dtype), n) for n in kind.counts]
        (n,) = kind.counts
        if own:
            return [self.off(self.comm.empty(n + 3, kind.dtype), n)]
        whole = self.heap[side].view(kind.dtype)
        return [self.off(whole, n)]

    def off(self, whole: Array, count: int) -> Array:
        start = self.own.randrange(4)
        return whole[start : start + count]

    # Data.

    def fill(self, kind: Kind, shift: int, xs: list[Array]) -> None:
        mine = contribution(self.comm.rank, kind.dtype, kind.op)
        for x in xs:
            x[:] = mine[shift : shift + len(x)]

    def check(self, kind: Kind, shift: int, xs: list[Array], outs: list[Array] | None,
              result: Any) -> None:  # fmt: skip
        want = expected(self.size, kind.dtype, kind.op)
        mine = contribution(self.comm.rank, kind.dtype, kind.op)
        results = result if len(kind.counts) > 1 else [result]
        assert len(results) == len(xs)
        for x, out, got in zip(xs, xs if outs is None else outs, results, strict=True):
            assert got is out
            end = shift + len(x)
            assert same(got, want[shift:end]), (kind, shift, self.seen)
            assert outs is None or same(x, mine[shift:end]), (kind, shift, self.seen)


def same(x: Array, y: Array) -> bool:
    return x.tobytes() == y.tobytes()


def given(kind: Kind, xs: list[Array], outs: list[Array] | None) -> tuple[Any, Any]:
    if len(kind.counts) > 1:
        return xs, outs
    return xs[0], None if outs is None else outs[0]


@pytest.mark.parametrize(("size", "calls"), [(2, 10_000), (4, 2_000)])
def test_calls_that_mix_everything_give_the_right_bits(size: int, calls: int) -> None:
    def rank() -> dict[str, int]:
        with pycoll.init() as comm:
            mix = Mix(comm, seed=size)
            mix.run(calls)
            return mix.seen

    for dtype in DTYPES:  # once, not once in every rank
        for op in OPS:
            expected(size, dtype, op)
    every = pycoll.spawn(rank, size, timeout=240)
    assert all(seen == every[0] for seen in every)
    assert sum(every[0].values()) == calls
    assert min(every[0][way] for way in ("call", "queue", "again")) > calls // 10


def test_plans_are_forgotten_while_their_calls_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 1)

    def rank() -> None:
        with pycoll.init() as comm:
            mine, want = float(comm.rank + 1), 3.0
            for _ in range(20):
                xs = [np.full(20_000 + i, mine, "float32") for i in range(6)]
                xs += [[np.full(100 + i, mine), np.full(5, mine)] for i in range(6)]
                for work in [comm.allreduce(x, async_op=True) for x in xs]:
                    work.wait()
                assert all((part == want).all() for x in xs for part in x)

    pycoll.spawn(rank, 2, timeout=120)
