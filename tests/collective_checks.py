"""Every collective against numpy, on the ranks of one communicator.

Run by the tests of `Communicator`, on spawned ranks, and as a script under a launcher. The data are
whole numbers so small that every result is exact; results go to poisoned arrays, also off by one
element from where numpy puts arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import pycoll
from pycoll.communicator import Communicator
from pycoll.dtypes import BY_NAME

Array = np.ndarray[Any, Any]

DTYPES = [name for name in BY_NAME if name != "bfloat16"]  # which numpy has not
OPS = ("sum", "prod", "min", "max", "avg")
REDUCING = ("allreduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = (*REDUCING, "broadcast", "allgather", "alltoall", "gather", "scatter")
#: Elements of a block: around the end of an inline message, of a chunk's unit and of a tile.
COUNTS = (0, 1, 3, 10, 11, 17, 1000)
LARGE = (4099, 70_001)


class Case(NamedTuple):
    """What all ranks ask for alike."""

    collective: str
    counts: tuple[int, ...]  #: elements of each rank's block; of the message where it has one
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    algorithm: str | None = None


class Side(NamedTuple):
    """What one rank brings, and what it is to get."""

    x: Array | None
    want: Array | None
    #: where x begins in the result (positive) or the result in x, in place; None where it cannot
    within: tuple[str, int] | None


def contribution(rank: int, count: int, dtype: str, op: str) -> Array:
    """What a rank brings: neighbours differ, and so do ranks."""
    i = np.arange(count)
    if op == "prod":
        return ((i * 5 + i // 7 + rank) % 2 + 1).astype(dtype)
    if dtype in ("float16", "int8", "uint8"):
        return ((3 * i + i // 11 + 5 * rank) % 13 + rank % 3).astype(dtype)
    return (i + 1000 * rank).astype(dtype)


def folded(every: list[Array], op: str) -> Array:
    """What the ranks' contributions come to."""
    dtype = every[0].dtype
    if op in ("min", "max"):
        return np.minimum.reduce(every) if op == "min" else np.maximum.reduce(every)
    with np.errstate(over="ignore"):
        fold = np.multiply if op == "prod" else np.add
        total = every[0]
        for other in every[1:]:
            total = fold(total, other, dtype=dtype)
    if op != "avg":
        return total
    if dtype.kind == "f":
        wide = np.float64 if dtype == np.float64 else np.float32
        return (total.astype(wide) / wide(len(every))).astype(dtype)
    whole = total.astype(object)
    return (np.sign(whole) * (abs(whole) // len(every))).astype(dtype)


def side(case: Case, rank: int, size: int) -> Side:
    """Say by numpy what a rank brings and gets."""
    name, counts, dtype, op, root, _ = case
    ends = list(itertools.accumulate(counts, initial=0))
    total, is_root = ends[-1], rank == root
    own = slice(ends[rank], ends[rank + 1]) if len(counts) == size else slice(0, total)
    at = own.start

    def wholes() -> list[Array]:
        return [contribution(r, total, dtype, op) for r in range(size)]

    def parts() -> Array:
        return np.concatenate([contribution(r, counts[r], dtype, op) for r in range(size)])

    mine = contribution(rank, total, dtype, op)
    if name in ("allreduce", "reduce"):
        here = name == "allreduce" or is_root
        return Side(mine, folded(wholes(), op) if here else None, ("same", 0) if here else None)
    if name == "reduce_scatter":
        return Side(mine, folded(wholes(), op)[own], ("out in x", at))
    if name == "broadcast":
        return Side(mine, contribution(root, total, dtype, op), ("same", 0))
    if name == "alltoall":
        return Side(mine, np.concatenate([w[own] for w in wholes()]), ("same", 0))
    if name in ("allgather", "gather"):
        here = name == "allgather" or is_root
        part = contribution(rank, counts[rank], dtype, op)
        return Side(part, parts() if here else None, ("x in out", at) if here else None)
    assert name == "scatter"
    whole = contribution(root, total, dtype, op)
    return Side(whole if is_root else None, whole[own], ("out in x", at) if is_root else None)


def room(count: int, dtype: str, offset: bool, empty: Callable[..., Array]) -> Array:
    """Poisoned room for ``count`` elements, perhaps off by one element."""
    whole = empty(count + 3, dtype)
    whole.view(np.uint8)[...] = 0xA5
    return whole[1 : count + 1] if offset else whole[:count]


def equal(got: Any, want: Array | None, *where: Any) -> None:
    if want is None:
        assert got is None, where
        return
    seen = np.asarray(got).reshape(-1)
    assert seen.dtype == want.dtype, where
    assert np.array_equal(seen, want), (where, seen[:8], want[:8])


class Checks:
    """One rank's side of all checks."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def call(self, case: Case, x: Any, out: Any, **more: Any) -> Any:
        """Call the collective's method."""
        if case.op != "sum" and case.collective in REDUCING:
            more["op"] = case.op
        if case.collective in ROOTED:
            more["root"] = case.root
        if case.algorithm is not None:
            more["algorithm"] = case.algorithm
        if case.collective == "broadcast":
            return self.comm.broadcast(x, **more)
        if len(set(case.counts)) > 1:
            return getattr(self.comm, f"{case.collective}v")(x, case.counts, out, **more)
        return getattr(self.comm, case.collective)(x, out, **more)

    def arrays(
        self, case: Case, within: bool, offset: bool, empty: Callable[..., Array] = np.empty
    ) -> Iterator[tuple[Side, Array | None, Array | None]]:
        """Yield the sides of a call with its arrays, once; in place if asked and possible."""
        s = side(case, self.rank, self.size)
        if within and s.within is None:
            within = False
        x = out = None
        kind, at = s.within if within and s.within else ("", 0)
        if case.collective == "broadcast" or kind == "same":
            assert s.x is not None
            x = out = room(s.x.size, case.dtype, offset, empty)
        elif kind == "x in out":
            assert s.x is not None
            assert s.want is not None
            out = room(s.want.size, case.dtype, offset, empty)
            x = out[at : at + s.x.size]
        elif kind == "out in x":
            assert s.x is not None
            assert s.want is not None
            x = room(s.x.size, case.dtype, offset, empty)
            out = x[at : at + s.want.size]
        else:
            x = None if s.x is None else room(s.x.size, case.dtype, offset, empty)
            out = None if s.want is None else room(s.want.size, case.dtype, offset, empty)
        if x is not None:
            x[...] = s.x
        yield s, x, out

    def blocking(self, case: Case, offset: bool = False) -> None:
        """Out of place, in place; from the plan's making, then from the cache."""
        for within, turn in itertools.product((False, True), range(2)):
            for s, x, out in self.arrays(case, within, offset):
                got = self.call(case, x, out)
                where = (case, "in place" if within else "apart", turn)
                if s.want is not None:
                    assert got is (x if case.collective == "broadcast" else out), where
                equal(got, s.want, *where)
                if not within and case.collective != "broadcast" and s.x is not None:
                    equal(x, s.x, *where, "x is written")

    def other_forms(self, case: Case) -> None:
        """By default, queued, persistent, in memory of `empty`, from torch."""
        comm = self.comm
        for s, x, _ in self.arrays(case, False, True):
            if case.collective != "scatter" or self.rank == case.root:
                equal(self.call(case, x, None), s.want, case, "by default")
            else:
                self.call(case, x, room(case.counts[self.rank], case.dtype, False, np.empty))
        works = []
        for within in (False, True, False):
            for s, x, out in self.arrays(case, within, True):
                works.append((s.want, self.call(case, x, out, async_op=True)))
        for want, work in works:
            equal(work.wait(), want, case, "queued")
        for within, empty in itertools.product((False, True), (np.empty, comm.empty)):
            for s, x, out in self.arrays(case, within, False, empty):
                equal(self.call(case, x, out), s.want, case, within, empty, "once")
            for s, x, out in self.arrays(case, within, False, empty):
                plan = comm.plan(
                    case.collective,
                    x,
                    None if case.collective == "broadcast" else out,
                    op=case.op,
                    root=case.root,
                    counts=case.counts if len(set(case.counts)) > 1 else None,
                    algorithm=case.algorithm,
                )
                for _ in range(2):
                    if x is not None:
                        if out is not None:
                            out.view(np.uint8)[...] = 0xA5
                        x[...] = s.x
                    equal(plan(), s.want, case, within, empty, "a plan")


def roots(size: int) -> list[int]:
    return sorted({0, size // 2, size - 1})


def blocks(collective: str, count: int, size: int) -> tuple[int, ...]:
    one = collective in ("allreduce", "reduce", "broadcast")
    return (count,) if one else (count,) * size


def uneven(size: int, turn: int) -> tuple[int, ...]:
    """Blocks of all lengths, some empty."""
    return tuple((0, 1, 37, 0, 5000, 12, 300)[(rank * 3 + turn) % 7] for rank in range(size))


def every_count(comm: Communicator, collectives: tuple[str, ...] = COLLECTIVES) -> None:
    """All collectives, counts and a few roots, in float32."""
    checks = Checks(comm)
    counts = (*COUNTS, *LARGE) if comm.size <= 8 else (1, 11, 4099)
    for collective, count in itertools.product(collectives, counts):
        for root in roots(comm.size) if collective in ROOTED else (0,):
            case = Case(collective, blocks(collective, count, comm.size), root=root)
            checks.blocking(case, offset=count % 2 == 1)


def every_dtype(comm: Communicator, collectives: tuple[str, ...] = COLLECTIVES) -> None:
    """All dtypes and operators, at two lengths."""
    checks = Checks(comm)
    for collective, dtype, count in itertools.product(collectives, DTYPES, (5, 1000)):
        for op in OPS if collective in REDUCING else ("sum",):
            root = count % comm.size if collective in ROOTED else 0
            case = Case(collective, blocks(collective, count, comm.size), dtype, op, root)
            checks.blocking(case, offset=True)


def every_form(comm: Communicator, collectives: tuple[str, ...] = COLLECTIVES) -> None:
    """Queued calls, plans, arrays of `empty`; by every root."""
    checks = Checks(comm)
    for collective, count in itertools.product(collectives, (0, 7, 5000)):
        every = range(comm.size) if comm.size <= 4 else roots(comm.size)
        for root in every if collective in ROOTED else (0,):
            checks.other_forms(Case(collective, blocks(collective, count, comm.size), root=root))


def every_table(comm: Communicator) -> None:
    """Blocks of different lengths."""
    checks = Checks(comm)
    turns = range(7) if comm.size <= 8 else (2, 5)
    for collective, turn in itertools.product(("allgather", "reduce_scatter"), turns):
        case = Case(collective, uneven(comm.size, turn), "int64", "max")
        checks.blocking(case, offset=True)
        if turn == 2:
            checks.other_forms(case)
            zeros = Case(collective, (0,) * comm.size, "int64", "max")
            checks.blocking(zeros)


def every_algorithm(comm: Communicator, names: Callable[[str], tuple[str, ...]]) -> None:
    """Every algorithm by name."""
    checks = Checks(comm)
    for collective in COLLECTIVES:
        for name, count in itertools.product(names(collective), (3, 2000)):
            root = count % comm.size if collective in ROOTED else 0
            counts = blocks(collective, count, comm.size)
            checks.blocking(Case(collective, counts, root=root, algorithm=name))


def every_transfer(comm: Communicator) -> None:
    """Messages between two ranks, blocks whose lengths only their ends know, and objects."""
    rank, every = comm.rank, range(comm.size)

    def block(frm: int, to: int) -> Array:
        return contribution(frm, (0, 3, 70_001, 200)[(frm + 2 * to) % 4], "float32", "sum") + to

    sends = [(block(rank, peer), peer) for peer in every]
    recvs = [(np.empty_like(block(peer, rank)), peer) for peer in every]
    work = comm.exchange(sends, recvs, async_op=True)
    sent, got = [x.size for x, _ in sends], [x.size for x, _ in recvs]
    x, want = (np.concatenate([x for x, _ in sends]), [block(peer, rank) for peer in every])
    equal(comm.alltoallv(x, sent, np.empty(sum(got), "f4"), got), np.concatenate(want))
    for i, found in enumerate(work.wait()):
        equal(found, want[i], "exchange", i)
    for root in roots(comm.size):
        whole = np.concatenate([block(peer, root) for peer in every])
        counts = [block(peer, root).size for peer in every]
        equal(comm.gatherv(block(rank, root), counts, None, root), whole if rank == root else None)
        mine = None if rank == root else np.empty_like(block(rank, root))
        equal(comm.scatterv(whole, counts, mine, root), block(rank, root))
        assert comm.broadcast_object({"rank": rank}, root) == {"rank": root}
    if comm.size > 1:
        comm.send(x, (rank + 1) % comm.size, async_op=True)
        left = (rank - 1) % comm.size
        x = np.concatenate([block(left, peer) for peer in every])
        equal(comm.recv(np.empty_like(x), left), x)
    assert comm.allgather_object("x" * rank) == ["x" * peer for peer in every]


def every_group(comm: Communicator) -> None:
    """What holds among all ranks holds among some, and meanwhile among all."""
    halves, twin = comm.split(comm.rank % 2, -comm.rank), comm.dup()
    assert halves is not None
    with halves, twin:
        for group in (halves, twin, comm):
            every_table(group)
            every_transfer(group)
            total = sum(
                range(comm.size)[comm.rank % 2 :: 2] if group is halves else range(comm.size)
            )
            equal(group.allreduce(np.full(5000, comm.rank)), np.full(5000, total))


def mixed(comms: list[Communicator], calls: int, seed: int) -> None:
    """Calls of all kinds one after the other on several communicators, some of them queued."""
    random = np.random.default_rng(seed)  # the same on all ranks
    every, pending = [Checks(comm) for comm in comms], []
    for turn in range(calls):
        checks = every[random.integers(len(every))]
        name = str(random.choice(COLLECTIVES))
        op = str(random.choice(OPS)) if name in REDUCING else "sum"
        count, root = int(random.choice((0, 1, 10, 100, 5000, 40_000))), int(random.integers(99))
        case = Case(
            name,
            blocks(name, count, checks.size),
            str(random.choice(DTYPES)),
            op,
            root % checks.size if name in ROOTED else 0,
        )
        form, within, offset = random.integers(3), random.integers(2) == 1, random.integers(2) == 1
        for s, x, out in checks.arrays(case, within, offset):
            got = checks.call(case, x, out, **({"async_op": True} if form == 2 else {}))
            if form == 2:
                pending.append((got, s.want, (turn, case)))
            else:
                equal(got, s.want, turn, case)
        if len(pending) > 6 or turn == calls - 1:
            for work, want, where in pending:
                equal(work.wait(), want, *where)
            pending.clear()


def main() -> None:
    """Check what differs between launchers and between hosts: nothing should."""
    with pycoll.init() as comm:
        every_count(comm)
        every_form(comm)
        every_group(comm)


if __name__ == "__main__":
    main()
