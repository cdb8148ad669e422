"""Reference interpreter: slow, in numpy, the living definition of the opcodes.

All ranks' Programs run in one process, one instruction of one channel at a time. Outputs,
slots and scratch start poisoned, so a value read before it is written shows in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.dtypes import DType, ReduceOp
from pycoll.errors import DeadlockError, UsageError
from pycoll.program.arithmetic import combine, divide, storage
from pycoll.program.isa import CHUNK_UNIT, Direction, EdgeKind, Flag, Op, Space
from pycoll.program.program import Edge, Instruction, Operand, Program

POISON = 0xA5
Bytes = npt.NDArray[np.uint8]
EdgeKey = tuple[EdgeKind, int, int, int, int]  #: kind, source, destination, channel, other


def run(
    programs: Sequence[Program],
    inputs: Sequence[npt.NDArray[Any]],
    dtype: DType,
    op: ReduceOp = ReduceOp.SUM,
    *,
    tile: int = 4096,
    slots: int = 2,
    in_place: bool = False,
) -> list[npt.NDArray[Any]]:
    """Run one collective; return every rank's output.

    ``inputs`` are equally long 1-d arrays, bfloat16 as uint16; with ``in_place`` they are
    overwritten. DeadlockError says what every rank waits for.
    """
    if tile < CHUNK_UNIT or tile % CHUNK_UNIT:
        raise UsageError(f"tile is {tile} bytes, want a positive multiple of {CHUNK_UNIT}")
    for rank, x in enumerate(inputs):
        if x.dtype != storage(dtype) or x.shape != inputs[0].shape or x.ndim != 1:
            raise UsageError(
                f"input of rank {rank} is {x.dtype}{list(x.shape)}, want {storage(dtype)} "
                f"{list(inputs[0].shape)} for {dtype.name}"
            )
    world = World(programs, inputs, dtype, op, tile=tile, slots=slots, in_place=in_place)
    world.run()
    return [out.view(storage(dtype)) for out in world.outputs]


def bounds(chunk: int, nchunks: int, nbytes: int) -> tuple[int, int]:
    """Return the bytes [from, to) of a chunk; every bound but the last is a multiple of 64."""
    units = -(-nbytes // CHUNK_UNIT)
    low, high = (min(nbytes, CHUNK_UNIT * (units * c // nchunks)) for c in (chunk, chunk + 1))
    return low, high


def tile_count(nchunks: int, nbytes: int, tile: int) -> int:
    """Return how often the LOOP runs; the same on all ranks."""
    units = -(-nbytes // CHUNK_UNIT)
    return max(1, -(-CHUNK_UNIT * -(-units // nchunks) // tile))


class World:
    """The memory and the counts of all ranks."""

    def __init__(
        self,
        programs: Sequence[Program],
        inputs: Sequence[npt.NDArray[Any]],
        dtype: DType,
        op: ReduceOp,
        *,
        tile: int,
        slots: int,
        in_place: bool,
    ) -> None:
        """Lay out buffers for one call."""
        self.dtype, self.op, self.tile, self.slots = dtype, op, tile, slots
        self.inputs: list[Bytes] = [x.view(np.uint8) for x in inputs]
        self.outputs: list[Bytes] = (
            self.inputs if in_place else [_poison(x.size) for x in self.inputs]
        )
        self.nbytes = self.inputs[0].size
        self.filled: dict[EdgeKey, int] = defaultdict(int)
        self.consumed: dict[EdgeKey, int] = defaultdict(int)
        self.slot: dict[tuple[EdgeKey, int], Bytes] = {}
        self.channels = [
            Channel(self, p, c) for p in programs for c in range(len(p.channel_starts))
        ]

    def run(self) -> None:
        """Step every channel in turn until all are finished."""
        while not all(c.finished for c in self.channels):
            if not sum(c.run() for c in self.channels):
                waiting = "; ".join(c.describe() for c in self.channels if not c.finished)
                raise DeadlockError(f"no rank can go on: {waiting}")


class Channel:
    """One channel of one rank while it runs."""

    def __init__(self, world: World, program: Program, number: int) -> None:
        """Start at the channel's first instruction."""
        self.world, self.program, self.number = world, program, number
        self.pc = program.channel_starts[number]
        self.scratch = [_poison(world.tile) for _ in range(program.nscratch)]
        self.t = 0
        self.ntiles = tile_count(program.nchunks, world.nbytes, world.tile)
        self.waits: dict[int, int] = defaultdict(int)  # edge -> WAITs passed
        self.finished = False

    def run(self) -> bool:
        """Execute until an instruction waits; tell whether any was executed."""
        first = True
        while not self.finished and self._step(self.program.instructions[self.pc]):
            first = False
        return not first

    def describe(self) -> str:
        """Say where the channel stands."""
        i = self.program.instructions[self.pc]
        edge = self.program.edges[i.edge]
        return (
            f"rank {self.program.rank} channel {self.number} tile {self.t} at instruction "
            f"{self.pc} waits for rank {edge.peer}"
        )

    def _step(self, i: Instruction) -> bool:
        if i.op is Op.END:
            self.finished = True
            return True
        if i.op is Op.WAIT and not self._satisfied(i.edge):
            return False
        if i.op is Op.SIGNAL:
            edge = self.program.edges[i.edge]
            counts = self.world.filled if edge.direction is Direction.SEND else self.world.consumed
            counts[self._key(edge)] += 1
        elif i.op is Op.REDUCE_COPY:
            self._reduce_copy(i)
        elif i.op is Op.LOOP:
            self.t = 0
        elif i.op is Op.END_LOOP:
            self.t += 1
            if self.t < self.ntiles:
                self.pc = i.target
        self.pc += 1
        return True

    def _satisfied(self, number: int) -> bool:
        edge, n = self.program.edges[number], self.waits[number] + 1
        key = self._key(edge)
        if edge.direction is Direction.RECV:
            ready = self.world.filled[key] >= n
        else:
            ready = edge.kind is not EdgeKind.DATA or self.world.consumed[key] >= (
                n - self.world.slots
            )
        if ready:
            self.waits[number] = n
        return ready

    def _key(self, edge: Edge) -> EdgeKey:
        ends = (self.program.rank, edge.peer)
        source, destination = ends if edge.direction is Direction.SEND else ends[::-1]
        return edge.kind, source, destination, edge.channel, edge.other

    def _reduce_copy(self, i: Instruction) -> None:
        dtype, kind = self.world.dtype, storage(self.world.dtype)
        values = [np.concatenate([_poison(0), *self._pieces(s)]).view(kind) for s in i.sources]
        value = values[0]
        for other in values[1:]:
            value = combine(value, other, dtype, self.world.op)
        if i.flags & Flag.SCALE:
            value = divide(value, self.program.size, dtype)
        for d in i.destinations:
            rest = value.view(np.uint8)
            for piece in self._pieces(d):
                piece[:] = rest[: piece.size]
                rest = rest[piece.size :]

    def _pieces(self, o: Operand) -> list[Bytes]:
        """Return views of this tile's bytes of every chunk of an operand."""
        w, nchunks = self.world, self.program.nchunks
        spans = []
        for chunk in range(o.chunk, o.chunk + o.nchunks):
            low, high = bounds(chunk, nchunks, w.nbytes)
            start = min(low + self.t * w.tile, high)
            spans.append((start, min(start + w.tile, high)))
        lengths = [high - low for low, high in spans]
        if o.space is Space.SCRATCH:
            return [self.scratch[o.place + k][:n] for k, n in enumerate(lengths)]
        if o.space is Space.SLOT:
            cuts = np.cumsum([0, *lengths])
            slot = self._next_slot(o)
            return [slot[a:b] for a, b in pairwise(cuts)]
        owner = o.edge if o.space in (Space.PEER_IN, Space.PEER_OUT) else self.program.rank
        buffers = w.inputs if o.space in (Space.IN, Space.PEER_IN) else w.outputs
        return [buffers[owner][a:b] for a, b in spans]

    def _next_slot(self, o: Operand) -> Bytes:
        edge = self.program.edges[o.edge]
        key = self._key(edge)
        sending = edge.direction is Direction.SEND
        n = (self.world.filled if sending else self.world.consumed)[key] % self.world.slots
        if (key, n) not in self.world.slot:
            self.world.slot[key, n] = _poison(self.world.tile * self.program.widest)
        return self.world.slot[key, n]


def _poison(nbytes: int) -> Bytes:
    return np.full(nbytes, POISON, np.uint8)
