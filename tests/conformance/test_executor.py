"""One suite over all executors: the same Programs give the same bits as the numpy reference.

What an executor may differ in is the payload of a NaN: numpy keeps an operand's, the others give
the one quiet NaN of sign 0 and payload 0, wherever something was folded.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import joined
import numpy as np
import numpy.typing as npt
import pytest
from fabric import DEVICES
from material import Array, contribution, nan_of

import pycoll
from pycoll.algorithms import BUILTIN
from pycoll.bootstrap import detect
from pycoll.dtypes import DTYPES, DType, ReduceOp
from pycoll.program import reference
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.runtime.native import bindings, codes
from pycoll.schedule import COLLECTIVES, Algorithm, Collective, NotDirect

Bytes = npt.NDArray[np.uint8]

#: Slots per edge, by size: two is the least there is.
SLOTS = {1: 2, 2: 2, 3: 4, 4: 2, 5: 2, 8: 4}
#: Elements around nothing, an inline message (40 B), a chunk unit (64 B), some tiles, a slot.
COUNTS = (0, 1, 2, 3, 9, 10, 11, 15, 16, 17, 63, 64, 65, 129, 1000)
LONG = 4099
TILES = (64, 192, 1024)
PLACES = tuple(itertools.product((False, True), repeat=2))
MAX_TILES = 6  #: the reference is slow: a call with more turns of the loop gets longer tiles
POISON, MARGIN = 0xA5, 64


@dataclass(frozen=True)
class Case:
    """One call on all ranks; its data follow from it."""

    algorithm: Algorithm
    direct: bool
    dtype: DType
    op: ReduceOp
    counts: tuple[int, ...]  #: elements of each block, in the order of ranks
    root: int
    tile: int
    slots: int
    in_place: tuple[bool, bool]  #: of even ranks and of odd ones: it is every rank's own affair
    offset: int  #: elements by which x and out are off a 64-byte boundary
    stray: bool  #: direct, but one rank's arrays cannot be reached: all must fall back

    @property
    def collective(self) -> Collective:
        return self.algorithm.collective

    @property
    def blocks(self) -> list[int]:
        return [count * self.dtype.itemsize for count in self.counts]

    def programs(self, size: int, direct: bool) -> tuple[Program, ...]:
        """Return what the ranks run, from the root on."""
        return programs(self.algorithm, size, direct, self.op is ReduceOp.AVG)

    def extents(self, rank: int, size: int) -> list[tuple[int, int]]:
        """Return the first block of a rank's input and their number; the same of its output."""
        virtual, c, n = (rank - self.root) % size, self.collective, len(self.counts)
        has = [len(c.in_blocks(virtual, size)), len(c.out_blocks(virtual, size))]
        return [(0, k) if k in (0, n) else (rank, 1) for k in has]

    def input(self, rank: int, size: int) -> Array:
        first, n = self.extents(rank, size)[0]
        low, high = sum(self.counts[:first]), sum(self.counts[: first + n])
        return contribution(self.dtype, rank, high)[low:]

    def turned(self, x: Array, extent: tuple[int, int], back: bool) -> Array:
        """Return an array of several blocks as it is when they are counted from the root on."""
        if extent[1] < 2:
            return x
        cut = sum(self.counts[self.root :] if back else self.counts[: self.root])
        return np.concatenate([x[cut:], x[:cut]])


Results = list[list[Bytes]]  #: of each case, of each rank
Executor = Callable[[int, Sequence[Case]], Results]


@cache
def programs(algorithm: Algorithm, size: int, direct: bool, average: bool) -> tuple[Program, ...]:
    return compile_all(algorithm, size, direct=direct, average=average)


@cache
def direct_sizes(algorithm: Algorithm) -> frozenset[int]:
    def has(size: int) -> bool:
        try:
            return bool(programs(algorithm, size, True, False))
        except NotDirect:
            return False

    return frozenset(size for size in SLOTS if has(size))


# The cases.


def forms() -> Iterator[tuple[int, Algorithm, bool]]:
    for size, algorithm in itertools.product(SLOTS, BUILTIN):
        yield size, algorithm, False
        if size in direct_sizes(algorithm):
            yield size, algorithm, True


def cases(size: int) -> list[Case]:
    """Every dtype × op and every count, for every form; what else varies is drawn."""
    drawn = random.Random(size)
    made = []

    def add(algorithm: Algorithm, direct: bool, dtype: DType, op: ReduceOp, count: int) -> None:
        c = algorithm.collective
        counts = [count] * c.nblocks(size)
        if c.blocks == "rank" and not c.equal_blocks and drawn.random() < 0.5:
            counts = [drawn.choice((0, 1, count, count // 2)) for _ in counts]
        widest = staged = programs(algorithm, size, False, False)[0].widest
        if direct:
            widest = max(staged, programs(algorithm, size, True, False)[0].widest)
        most = joined.SLOT_BYTES // widest // 64 * 64
        made.append(
            Case(
                algorithm,
                direct,
                dtype,
                op,
                tuple(counts),
                root=drawn.randrange(size) if c.rooted else 0,
                tile=min(drawn.choice(TILES), most),
                slots=SLOTS[size],
                in_place=drawn.choice(PLACES) if c.in_place else (False, False),
                offset=drawn.choice((0, 0, 1)),
                stray=direct and size > 1 and drawn.random() < 0.1,
            )
        )
        while made[-1].tile < most and turns(made[-1], size) > MAX_TILES:
            made[-1] = replace(made[-1], tile=min(2 * made[-1].tile, most))

    for at, algorithm, direct in forms():
        if at != size:
            continue
        ops = list(ReduceOp) if algorithm.collective.reduces else [ReduceOp.SUM]
        each = 3 if algorithm.collective.name == "allreduce" else 1
        for dtype, op in itertools.product(DTYPES, ops):
            for count in drawn.sample(COUNTS, each):
                add(algorithm, direct, dtype, op, count)
        long = LONG if algorithm.collective.blocks == "one" else LONG // size
        for count in (*COUNTS, long):
            add(algorithm, direct, drawn.choice(DTYPES), drawn.choice(ops), count)
    return made


def turns(case: Case, size: int) -> int:
    """Return how often the loop runs."""
    parts = case.programs(size, case.direct)[0].nchunks // len(case.counts)
    return max(reference.tile_count(parts, nbytes, case.tile) for nbytes in case.blocks)


# The executors.


def by_reference(size: int, wanted: Sequence[Case]) -> Results:
    results = []
    for case in wanted:
        ranks = [(virtual + case.root) % size for virtual in range(size)]
        extents = [case.extents(rank, size) for rank in ranks]
        out = reference.run(
            case.programs(size, case.direct and not case.stray),
            [
                case.turned(case.input(rank, size), e[0], back=False)
                for rank, e in zip(ranks, extents, strict=True)
            ],
            case.dtype,
            case.op,
            tile=case.tile,
            slots=case.slots,
            in_place=all(case.in_place),
            collective=case.collective,
            counts=case.counts[case.root :] + case.counts[: case.root]
            if len(case.counts) > 1
            else case.counts,
        )
        found = {
            rank: case.turned(x, e[1], back=True).view(np.uint8)
            for rank, e, x in zip(ranks, extents, out, strict=True)
        }
        results.append([found[rank] for rank in range(size)])
    return results


def by_native(size: int, wanted: Sequence[Case], way: str = "shm", rails: int = 1) -> Results:
    if way != "shm":
        wanted = [replace(case, direct=False) for case in wanted]

    def rank() -> list[bytes]:
        met = detect()
        comm = joined.join(met, way, rails, slots=SLOTS[size], spin=20 if size == 2 else 0)
        try:
            return [native_call(comm, met.rank, size, i, case) for i, case in enumerate(wanted)]
        finally:
            bindings.comm_close(comm)
            met.close()

    by_rank = pycoll.spawn(rank, size, timeout=120)
    return [[np.frombuffer(x, np.uint8) for x in call] for call in zip(*by_rank, strict=True)]


def native_call(comm: Any, rank: int, size: int, number: int, case: Case) -> bytes:
    """Run one case on this rank; what must not be written is looked at here."""
    virtual = (rank - case.root) % size
    blob = case.programs(size, False)[virtual].to_bytes()
    staged, direct = bindings.program_load(comm, blob, case.root), None
    if case.direct:
        blob = case.programs(size, True)[virtual].to_bytes()
        direct = bindings.program_load(comm, blob, case.root)
    given, kept = case.extents(rank, size)
    plan = bindings.plan_create(
        comm,
        staged,
        direct,
        signature=number + 1,
        blocks=case.blocks,
        dtype=case.dtype.code,
        op=int(case.op),
        tile=case.tile,
        stream=number % 3 == 0,
        root=case.root,
        in_extent=given,
        out_extent=kept,
    )
    mine = case.input(rank, size).view(np.uint8)
    into, end = (sum(case.blocks[: e[0]]) for e in (given, kept))
    result = np.full(sum(case.blocks[kept[0] : sum(kept)]), POISON, np.uint8)
    reachable = case.direct and not (case.stray and rank == size - 1)
    in_place = case.in_place[rank % 2]
    if not in_place:
        x, out = Place(comm, mine, case, reachable), Place(comm, result, case, reachable)
        addresses = x.address, out.address
    elif len(mine) >= len(result):  # the output lies in the input
        x = out = Place(comm, mine, case, reachable)
        addresses = x.address, x.address + end - into
    else:
        result[into - end :][: len(mine)] = mine
        x = out = Place(comm, result, case, reachable)
        addresses = x.address + into - end, x.address
    code = joined.finish(comm, bindings.run(comm, plan, *addresses, joined.SECONDS))
    assert code == 0, (case, codes.comm_error(comm))
    assert x.guarded(), case
    assert out.guarded(), case
    assert in_place or np.array_equal(x.content, mine), case
    start = addresses[1] - out.address
    got = out.content[start : start + len(result)].tobytes()
    for place in {id(x): x, id(out): out}.values():
        place.free(comm)
    for handle in (plan, staged, direct):
        if handle is not None:
            bindings.release(handle)
    return got


class Place:
    """An array off its alignment, between margins, where peers can reach it or where not."""

    def __init__(self, comm: Any, content: Bytes, case: Case, reachable: bool) -> None:
        self.heap: int | None = None
        nbytes = len(content) + 2 * MARGIN + 128
        if reachable:
            self.heap = bindings.heap_alloc(comm, nbytes)
            assert self.heap is not None
            self.memory = np.frombuffer(bindings.heap_buffer(self.heap, nbytes), np.uint8)
        else:
            self.memory = np.empty(nbytes, np.uint8)
        self.memory[:] = POISON
        start = -self.memory.ctypes.data % 64 + MARGIN + case.offset * case.dtype.itemsize
        self.content = self.memory[start : start + len(content)]
        self.content[:] = content
        self.address = self.memory.ctypes.data + start
        self.around = (self.memory[:start], self.memory[start + len(content) :])

    def guarded(self) -> bool:
        return all(bool((margin == POISON).all()) for margin in self.around)

    def free(self, comm: Any) -> None:
        if self.heap is not None:
            bindings.heap_free(comm, self.heap)


#: Whoever writes another executor adds it here.
EXECUTORS: dict[str, Executor] = {
    "native": by_native,
    "native, tcp": partial(by_native, way="tcp"),
    "native, libfabric": partial(by_native, way="libfabric, tcp"),
    "native, verbs": partial(by_native, way="verbs"),
    "native, verbs, two rails": partial(by_native, way="verbs", rails=2),
}


@lru_cache(maxsize=1)
def expected(size: int) -> tuple[list[Case], Results]:
    wanted = cases(size)
    return wanted, by_reference(size, wanted)


def runs() -> Iterator[Any]:
    """Every executor with every size; those for which the stand-in is wanted are marked.

    The executors of a size come after each other, as they share what is expected.
    """
    for size, executor in itertools.product(SLOTS, EXECUTORS):
        if "two rails" not in executor or 2 * size <= DEVICES:
            marks = joined.marks(executor.removeprefix("native, "))
            yield pytest.param(executor, size, marks=marks, id=f"{executor}-{size}")


@pytest.mark.parametrize(("executor", "size"), list(runs()))
def test_every_program_gives_the_bits_of_the_reference(executor: str, size: int) -> None:
    wanted, right = expected(size)
    found = EXECUTORS[executor](size, wanted)
    for case, want, got in zip(wanted, right, found, strict=True):
        word = np.dtype(f"u{case.dtype.itemsize}")
        for rank in range(size):
            assert not case.collective.same_bits or np.array_equal(got[rank], got[0]), (case, rank)
            bits, told = want[rank].view(word).copy(), got[rank].view(word)
            if case.collective.reduces and size > 1:  # else even a NaN keeps its bits
                isnan, canonical = nan_of(case.dtype, want[rank])
                bits[isnan] = canonical
            assert np.array_equal(told, bits), (case, rank, *np.flatnonzero(told != bits)[:5])


def test_the_cases_reach_every_corner() -> None:
    for size in SLOTS:
        made = cases(size)
        times = [turns(c, size) for c in made]
        assert max(times) > 2
        assert times.count(1) > 100
        assert {c.collective.name for c in made} == {*COLLECTIVES}
        assert {(c.dtype, c.op) for c in made} == set(itertools.product(DTYPES, ReduceOp))
        assert {n for c in made for n in c.counts} >= {*COUNTS, LONG}
        assert {(c.in_place, c.offset) for c in made} == set(itertools.product(PLACES, (0, 1)))
        assert {c.root for c in made} == set(range(size))
        assert any(c.stray for c in made) or size == 1
        assert {c.algorithm for c in made if c.direct} == {
            a for a in BUILTIN if size in direct_sizes(a)
        }
        if size > 1:
            assert any(len(set(c.counts)) > 1 for c in made)
            pieces = {n for c in made for n in pieces_of(c, size)}
            assert any(0 < n <= 40 for n in pieces)  # inline
            assert any(n > 40 for n in pieces)
            assert 0 in pieces  # an empty tile, or no element at all


def pieces_of(case: Case, size: int) -> Iterator[int]:
    """Yield the bytes of every chunk in every turn of the loop."""
    parts = case.programs(size, case.direct)[0].nchunks // len(case.counts)
    for nbytes, part in itertools.product(case.blocks, range(parts)):
        low, high = reference.bounds(part, parts, nbytes)
        for turn in range(turns(case, size)):
            start = min(low + turn * case.tile, high)
            yield min(start + case.tile, high) - start
