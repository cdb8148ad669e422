"""Calls drawn at random on arrays of a GPU, the stand-in, and every bit of them looked at.

What makes them cheap, as a guest's processor is slow: each rank's numbers are drawn once, and a
call takes a window of them that begins elsewhere each time, so that what is wanted is a window,
too; memory is allocated once, and copied by the stream that the calls are on, a few calls at a
time. The processor touches no memory of the GPU.
"""

from __future__ import annotations

import ctypes
import random
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

import fakecuda
import numpy as np
from collective_checks import COLLECTIVES, ROOTED, Case, Checks, blocks

import pycoll

Array = np.ndarray[Any, Any]

COUNTS = (1, 9, 11, 300, 4099)  #: elements of a block: some in the line itself
LONG = 20_000  #: of every fiftieth call: cut over the rails where there are two
DTYPES = ("float32", "int32")
DEPTH = 4  #: calls between two looks
GUARD = 4  #: elements before, between and behind arrays, which nothing may write
POISON = 0xA5


class Numbers:
    """Whole numbers at random, of all ranks: so small that sums are exact in every dtype here.

    Args:
        size: The number of ranks.
        seed: The same on all of them.
    """

    def __init__(self, size: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        most = (1 << 23) // size
        self.length = LONG * size + 10_007
        rows = draw.integers(-most, most, (size, self.length))
        self.rows = {dtype: rows.astype(dtype) for dtype in DTYPES}
        self.sums = {dtype: rows.sum(0).astype(dtype) for dtype in DTYPES}


class Piece(NamedTuple):
    """An array within the memory of a call."""

    at: int  #: in elements
    count: int


class Planned(NamedTuple):
    """What one rank brings to a call, and what it gets, in the memory that the call has."""

    nelements: int  #: of that memory, with what guards the arrays
    x: Piece | None
    out: Piece | None
    brings: Array | None
    want: Array | None
    kept: bool  #: whether x is to be as it was


def planned(case: Case, rank: int, numbers: Numbers, shift: int, within: bool) -> Planned:
    """Say what a call on the window at `shift` is to do."""
    name, counts, dtype, _, root, _ = case
    n, rows = counts[0], numbers.rows[dtype]
    block = slice(shift + rank * n, shift + (rank + 1) * n)
    every = slice(shift, shift + sum(counts))
    first, is_root = slice(shift, shift + n), rank == root
    inside = 0  # where the smaller array begins in the larger one, in place
    brings: Array | None = rows[rank, every]
    want: Array | None
    if name in ("allreduce", "reduce"):
        want = numbers.sums[dtype][every] if name == "allreduce" or is_root else None
    elif name == "reduce_scatter":
        want, inside = numbers.sums[dtype][block], rank * n
    elif name == "broadcast":
        want, within = rows[root, every], True
    elif name == "alltoall":
        want = rows[:, block].reshape(-1)
    elif name in ("allgather", "gather"):
        brings, inside = rows[rank, first], rank * n
        want = rows[:, first].reshape(-1) if name == "allgather" or is_root else None
    else:
        assert name == "scatter"
        brings, want, inside = rows[root, every] if is_root else None, rows[root, block], rank * n
    length = [0 if one is None else one.size for one in (brings, want)]
    if brings is None or want is None or not within:
        x = None if brings is None else Piece(GUARD, length[0])
        out = None if want is None else Piece(2 * GUARD + length[0], length[1])
        return Planned(sum(length) + 3 * GUARD, x, out, brings, want, kept=True)
    places = [GUARD + (inside if mine < max(length) else 0) for mine in length]
    x, out = (Piece(at, count) for at, count in zip(places, length, strict=True))
    return Planned(max(length) + 2 * GUARD, x, out, brings, want, kept=False)


class Memory:
    """Memory of the GPU, and as much of the host that the GPU's driver has pinned.

    Args:
        nelements: Of four bytes each.
    """

    def __init__(self, nelements: int) -> None:
        self.device = fakecuda.Memory(4 * nelements)
        at = c_void_p()
        fakecuda.cu("cuMemHostAlloc", byref(at), c_size_t(4 * nelements), c_uint(0))
        whole = (ctypes.c_char * (4 * nelements)).from_address(at.value or 0)
        self.host = np.frombuffer(whole, "u4")

    def copy(self, nelements: int, stream: fakecuda.Stream, *, back: bool = False) -> None:
        """Copy the first elements to the GPU, or `back`, in the order of a stream."""
        ends = c_uint64(self.device.address), c_uint64(self.host.ctypes.data)
        to, frm = reversed(ends) if back else ends
        fakecuda.cu("cuMemcpyAsync", to, frm, c_size_t(4 * nelements), c_void_p(stream.ptr))

    def seen(self, piece: Piece | None, dtype: str) -> Any:
        """Return an array as pycoll is shown it."""
        return None if piece is None else Shown(self.device.address + 4 * piece.at, piece, dtype)


class Shown:
    """An array that has nothing but its interface."""

    def __init__(self, address: int, piece: Piece, dtype: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": (piece.count,),
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class Calls:
    """A rank's side of calls, a few of which are under way."""

    def __init__(self, comm: pycoll.Communicator, stream: fakecuda.Stream, seed: int) -> None:
        self.comm, self.stream = comm, stream
        self.checks = Checks(comm)
        self.numbers = Numbers(comm.size, seed)
        self.draw = random.Random(seed)
        room = 2 * comm.size * LONG + 3 * GUARD
        self.memory = [Memory(room) for _ in range(DEPTH)]
        self.pending: list[tuple[Memory, Array, slice, Any]] = []

    def make(self, calls: int) -> None:
        """Make calls, and look at them all."""
        with self.comm.on_stream(self.stream):
            for call in range(calls):
                memory = self.memory[call % DEPTH]
                if self.draw.randrange(9) == 8:
                    self.exchange(memory, call)
                else:
                    self.collective(memory, call)
                if call % DEPTH == DEPTH - 1 or call == calls - 1:
                    self.look()

    def collective(self, memory: Memory, call: int) -> None:
        """Enqueue a collective call."""
        draw, size = self.draw, self.comm.size
        name, n, dtype = draw.choice(COLLECTIVES), draw.choice(COUNTS), draw.choice(DTYPES)
        root, n = draw.randrange(size) if name in ROOTED else 0, LONG if call % 50 == 0 else n
        case = Case(name, blocks(name, n, size), dtype, root=root)
        shift = draw.randrange(self.numbers.length - n * size)
        plan = planned(case, self.comm.rank, self.numbers, shift, draw.random() < 0.5)
        self.fill(memory, plan.nelements, [(plan.out, None), (plan.x, plan.brings)])
        x = memory.seen(plan.x, dtype)
        out = x if plan.x == plan.out else memory.seen(plan.out, dtype)
        self.checks.call(case, x, out)
        kept = [(plan.x, plan.brings)] if plan.kept else []
        looked = None if plan.kept else plan.out
        self.expect(memory, plan.nelements, [*kept, (plan.out, plan.want)], looked, (call, case))

    def exchange(self, memory: Memory, call: int) -> None:
        """Enqueue messages to every rank, this one too, each of another length."""
        rank, size, rows = self.comm.rank, self.comm.size, self.numbers.rows["float32"]
        n, shift = self.draw.choice(COUNTS), self.draw.randrange(self.numbers.length - LONG)

        def block(frm: int, to: int) -> Array:
            return rows[frm, shift + to : shift + to + n + 3 * frm + to]

        pieces, at = [], GUARD
        ends = [*((rank, to) for to in range(size)), *((frm, rank) for frm in range(size))]
        for row in (block(*each) for each in ends):
            pieces.append((Piece(at, row.size), row))
            at += row.size + GUARD
        sent, got = pieces[:size], pieces[size:]
        self.fill(memory, at, [*sent, *((piece, None) for piece, _ in got)])
        self.comm.exchange(
            [(memory.seen(piece, "float32"), to) for to, (piece, _) in enumerate(sent)],
            [(memory.seen(piece, "float32"), frm) for frm, (piece, _) in enumerate(got)],
        )
        self.expect(memory, at, pieces, None, (call, "messages"))

    def fill(self, memory: Memory, n: int, pieces: list[tuple[Piece | None, Array | None]]) -> None:
        """Copy arrays to the GPU, all else poisoned."""
        memory.host[:n].view("u1")[:] = POISON
        put(memory.host, pieces)
        memory.copy(n, self.stream)

    def expect(
        self,
        memory: Memory,
        n: int,
        pieces: list[tuple[Piece | None, Array | None]],
        only: Piece | None,
        where: Any,
    ) -> None:
        """Copy it back, and note how all of it is to be then; or a piece and what is around."""
        memory.copy(n, self.stream, back=True)
        want = np.full(n, 0x01010101 * POISON, "u4")
        put(want, pieces)
        part = slice(n) if only is None else slice(only.at, only.at + only.count)
        self.pending.append((memory, want, part, where))

    def look(self) -> None:
        """Wait for what is under way, and look at every bit of it."""
        self.stream.synchronize()
        for memory, want, part, where in self.pending:
            got = memory.host[: want.size]
            good = (got[part] == want[part]).all() and (got[:GUARD] == want[:GUARD]).all()
            good = good and (got[-GUARD:] == want[-GUARD:]).all()
            assert good, (where, np.flatnonzero(got[part] != want[part])[:9])
        self.pending.clear()


def put(memory: Array, pieces: list[tuple[Piece | None, Array | None]]) -> None:
    """Write arrays to their places."""
    for piece, row in pieces:
        if piece is not None and row is not None:
            memory[piece.at : piece.at + piece.count] = row.view("u4")
