"""One suite over all executors: the same Programs give the same bits as the numpy reference.

What an executor may differ in is the payload of a NaN: numpy keeps an operand's, the others give
the one quiet NaN of sign 0 and payload 0, wherever something was folded.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import joined
import numpy as np
import numpy.typing as npt
import pytest

import pycoll
from pycoll.algorithms import BUILTIN
from pycoll.bootstrap import detect
from pycoll.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, FLOAT64, DType, ReduceOp
from pycoll.program import reference
from pycoll.program.arithmetic import narrow, storage
from pycoll.program.lower import compile_all
from pycoll.program.program import Program
from pycoll.runtime import bindings
from pycoll.schedule import Algorithm, NotDirect

Array = npt.NDArray[Any]
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

#: Bits of exponent and of mantissa, of the types that have them.
FLOATS = {FLOAT64: (11, 52), FLOAT32: (8, 23), FLOAT16: (5, 10), BFLOAT16: (8, 7)}


@dataclass(frozen=True)
class Case:
    """One call on all ranks; its data follow from it."""

    algorithm: Algorithm
    direct: bool
    dtype: DType
    op: ReduceOp
    count: int
    tile: int
    slots: int
    in_place: tuple[bool, bool]  #: of even ranks and of odd ones: it is every rank's own affair
    offset: int  #: elements by which x and out are off a 64-byte boundary
    stray: bool  #: direct, but one rank's arrays cannot be reached: all must fall back

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def programs(self, size: int, direct: bool) -> tuple[Program, ...]:
        return programs(self.algorithm, size, direct, self.op is ReduceOp.AVG)

    def inputs(self, size: int) -> list[Array]:
        return [contribution(self.dtype, rank, self.count) for rank in range(size)]


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


# The data.


@cache
def material(dtype: DType, rank: int) -> Array:
    """Every pair of special values at two neighbours of rank, then any bits, then moderate ones."""
    rng = np.random.default_rng((dtype.code, rank))
    kind, word = storage(dtype), np.dtype(f"u{dtype.itemsize}")
    special = np.array(specials(dtype), word)
    i = np.arange(len(special) ** 2)
    pairs = special[i % len(special) if rank % 2 else i // len(special)]
    order = np.random.default_rng(dtype.code).permutation(len(pairs))
    anything = rng.integers(0, 1 << 8 * dtype.itemsize, 512, word, endpoint=False)
    if dtype in FLOATS:
        wide = rng.standard_normal(LONG).astype(np.float64 if dtype is FLOAT64 else np.float32)
        moderate = narrow(wide, dtype).view(word)
    else:
        moderate = rng.integers(0, 12, LONG).astype(kind).view(word)
    made = np.concatenate([pairs[order][:700], anything, moderate])
    return made[np.random.default_rng(7).permutation(len(made))].view(kind)


def specials(dtype: DType) -> list[int]:
    bits = 8 * dtype.itemsize
    if dtype not in FLOATS:
        top = 1 << (bits - 1)
        return [x % (2 * top) for x in (0, 1, 2, 3, 7, -1, -2, -7, top, top + 1, top - 1)]
    exponent, mantissa = FLOATS[dtype]
    infinity = ((1 << exponent) - 1) << mantissa
    one = ((1 << (exponent - 1)) - 1) << mantissa
    quiet = infinity | 1 << (mantissa - 1)
    positive = (
        0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, infinity - 1, infinity,
        infinity + 1, quiet, quiet | 5,
    )  # fmt: skip
    return [x | sign for x in positive for sign in (0, 1 << (bits - 1))]


def contribution(dtype: DType, rank: int, count: int) -> Array:
    return material(dtype, rank)[:count].copy()


def nan_of(dtype: DType, x: Bytes) -> tuple[npt.NDArray[np.bool_], int]:
    """Say which elements are NaN, and what the one NaN is that a fold may give."""
    if dtype not in FLOATS:
        return np.zeros(len(x) // dtype.itemsize, bool), 0
    exponent, mantissa = FLOATS[dtype]
    infinity = ((1 << exponent) - 1) << mantissa
    word = np.dtype(f"u{dtype.itemsize}")
    magnitude = x.view(word) & word.type((1 << (exponent + mantissa)) - 1)
    return magnitude > infinity, infinity | 1 << (mantissa - 1)


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
        program = programs(algorithm, size, direct, False)[0]
        staged = programs(algorithm, size, False, False)[0]
        nbytes = count * dtype.itemsize
        most = joined.SLOT_BYTES // max(program.widest, staged.widest) // 64 * 64
        tile = min(drawn.choice(TILES), most)
        while tile < most and reference.tile_count(program.nchunks, nbytes, tile) > MAX_TILES:
            tile = min(2 * tile, most)
        made.append(
            Case(
                algorithm,
                direct,
                dtype,
                op,
                count,
                tile,
                SLOTS[size],
                in_place=drawn.choice(PLACES),
                offset=drawn.choice((0, 0, 1)),
                stray=direct and size > 1 and drawn.random() < 0.1,
            )
        )

    for at, algorithm, direct in forms():
        if at != size:
            continue
        for dtype, op in itertools.product(DTYPES, ReduceOp):
            for count in drawn.sample(COUNTS, 3):
                add(algorithm, direct, dtype, op, count)
        for count in (*COUNTS, LONG):
            add(algorithm, direct, drawn.choice(DTYPES), drawn.choice(list(ReduceOp)), count)
    return made


# The executors.


def by_reference(size: int, wanted: Sequence[Case]) -> Results:
    results = []
    for case in wanted:
        out = reference.run(
            case.programs(size, case.direct and not case.stray),
            case.inputs(size),
            case.dtype,
            case.op,
            tile=case.tile,
            slots=case.slots,
            in_place=all(case.in_place),
        )
        results.append([x.view(np.uint8) for x in out])
    return results


def by_native(size: int, wanted: Sequence[Case]) -> Results:
    def rank() -> list[bytes]:
        met = detect()
        comm = joined.join(met, slots=SLOTS[size], spin=20 if size == 2 else 0)
        try:
            return [native_call(comm, met.rank, size, i, case) for i, case in enumerate(wanted)]
        finally:
            bindings.comm_close(comm)
            met.close()

    by_rank = pycoll.spawn(rank, size, timeout=120)
    return [[np.frombuffer(x, np.uint8) for x in call] for call in zip(*by_rank, strict=True)]


def native_call(comm: Any, rank: int, size: int, number: int, case: Case) -> bytes:
    """Run one case on this rank; what must not be written is looked at here."""
    staged = bindings.program_load(comm, case.programs(size, False)[rank].to_bytes())
    direct = None
    if case.direct:
        direct = bindings.program_load(comm, case.programs(size, True)[rank].to_bytes())
    plan = bindings.plan_create(
        comm,
        staged,
        direct,
        signature=number + 1,
        blocks=[case.nbytes],
        dtype=case.dtype.code,
        op=int(case.op),
        tile=case.tile,
        stream=number % 3 == 0,
    )
    mine = contribution(case.dtype, rank, case.count).view(np.uint8)
    reachable = case.direct and not (case.stray and rank == size - 1)
    x = Place(comm, mine, case, reachable)
    in_place = case.in_place[rank % 2]
    out = x if in_place else Place(comm, np.full_like(mine, POISON), case, reachable)
    code = joined.finish(comm, bindings.run(comm, plan, x.address, out.address, joined.SECONDS))
    assert code == 0, (case, bindings.comm_error(comm))
    assert x.guarded(), case
    assert out.guarded(), case
    assert in_place or np.array_equal(x.content, mine), case
    result = out.content.tobytes()
    for place in {id(x): x, id(out): out}.values():
        place.free(comm)
    for handle in (plan, staged, direct):
        if handle is not None:
            bindings.release(handle)
    return result


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
EXECUTORS: dict[str, Executor] = {"native": by_native}


@lru_cache(maxsize=1)
def expected(size: int) -> tuple[list[Case], Results]:
    wanted = cases(size)
    return wanted, by_reference(size, wanted)


@pytest.mark.parametrize("size", SLOTS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_program_gives_the_bits_of_the_reference(executor: str, size: int) -> None:
    wanted, right = expected(size)
    found = EXECUTORS[executor](size, wanted)
    for case, want, got in zip(wanted, right, found, strict=True):
        for rank in range(size):
            assert np.array_equal(got[rank], got[0]), (case, rank)
        isnan, canonical = nan_of(case.dtype, want[0])
        word = np.dtype(f"u{case.dtype.itemsize}")
        bits, told = want[0].view(word).copy(), got[0].view(word)
        if size > 1:  # else nothing is folded, and even a NaN keeps its bits
            bits[isnan] = canonical
        assert np.array_equal(told, bits), (case, *np.flatnonzero(told != bits)[:5])


def test_the_cases_reach_every_corner() -> None:
    for size in SLOTS:
        made = cases(size)
        chunks = {id(c): programs(c.algorithm, size, c.direct, False)[0].nchunks for c in made}
        turns = [reference.tile_count(chunks[id(c)], c.nbytes, c.tile) for c in made]
        assert max(turns) > 2
        assert turns.count(1) > 100
        assert {(c.dtype, c.op) for c in made} == set(itertools.product(DTYPES, ReduceOp))
        assert {c.count for c in made} == {*COUNTS, LONG}
        assert {(c.in_place, c.offset) for c in made} == set(itertools.product(PLACES, (0, 1)))
        assert any(c.stray for c in made) or size == 1
        assert {c.algorithm for c in made if c.direct} == {
            a for a in BUILTIN if size in direct_sizes(a)
        }
        if size > 1:
            pieces = [piece for c in made for piece in pieces_of(c, chunks[id(c)])]
            assert any(0 < n <= 40 for n in pieces)  # inline
            assert any(n > 40 for n in pieces)
            assert 0 in pieces  # an empty tile, or no element at all


def pieces_of(case: Case, nchunks: int) -> Iterator[int]:
    for turn in range(reference.tile_count(nchunks, case.nbytes, case.tile)):
        for chunk in range(nchunks):
            low, high = reference.bounds(chunk, nchunks, case.nbytes)
            start = min(low + turn * case.tile, high)
            yield min(start + case.tile, high) - start
