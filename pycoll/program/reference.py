"""Reference interpreter: slow, in numpy, the living definition of the opcodes.

All ranks' Programs run in one process, one instruction of one channel at a time. Outputs,
slots and scratch start poisoned, so a value read before it is written shows in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pycoll.dtypes import DType, ReduceOp
from pycoll.errors import DeadlockError, ScheduleError, UsageError
from pycoll.program.arithmetic import combine, divide, storage
from pycoll.program.isa import CHUNK_UNIT, Direction, EdgeKind, Flag, Op, Space
from pycoll.program.program import Edge, Instruction, Operand, Program
from pycoll.schedule import Collective, allreduce

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
    collective: Collective = allreduce,
    counts: Sequence[int] | None = None,
) -> list[npt.NDArray[Any]]:
    """Run one collective; return every rank's output.

    ``inputs`` are 1-d arrays, bfloat16 as uint16, of what the collective gives each rank (empty
    where that is nothing); the results are what it promises. ``counts`` are the elements of each
    block, by default told by the inputs. With ``in_place`` input and output are one memory, and
    the inputs may be overwritten. DeadlockError says what every rank waits for.
    """
    if tile < CHUNK_UNIT or tile % CHUNK_UNIT:
        raise UsageError(f"tile is {tile} bytes, want a positive multiple of {CHUNK_UNIT}")
    if in_place and not collective.in_place:
        raise UsageError(f"{collective.name} cannot be done in place")
    size = len(programs)
    counts = block_counts(collective, size, inputs) if counts is None else counts
    if len(counts) != collective.nblocks(size):
        raise UsageError(f"{len(counts)} counts, want {collective.nblocks(size)}, one for a block")
    if collective.equal_blocks and len(set(counts)) > 1:
        raise UsageError(f"counts are {list(counts)}, want equal ones for {collective.name}")
    for rank, x in enumerate(inputs):
        want = sum(counts[b] for b in collective.in_blocks(rank, size))
        if x.dtype != storage(dtype) or x.shape != (want,):
            raise UsageError(
                f"input of rank {rank} is {x.dtype}{list(x.shape)}, want {storage(dtype)} "
                f"[{want}] for {dtype.name}"
            )
    blocks = [count * dtype.itemsize for count in counts]
    world = World(programs, inputs, dtype, op, collective, blocks, tile, slots, in_place)
    world.run()
    return [out.content.view(storage(dtype)) for out in world.outputs]


def block_counts(
    collective: Collective, size: int, inputs: Sequence[npt.NDArray[Any]]
) -> list[int]:
    """Return the elements of each block: equal ones, but where each input is one block."""
    if collective.blocks == "one":
        return [len(inputs[0])]
    if all(collective.in_blocks(rank, size) == range(rank, rank + 1) for rank in range(size)):
        return [len(x) for x in inputs]
    if len(inputs[0]) % size:
        raise UsageError(
            f"input of rank 0 has {len(inputs[0])} elements, want a multiple of {size}"
        )
    return [len(inputs[0]) // size] * size


def bounds(chunk: int, nchunks: int, nbytes: int) -> tuple[int, int]:
    """Return the bytes [from, to) of a chunk in a block of ``nchunks``.

    Every bound but the last is a multiple of 64.
    """
    units = -(-nbytes // CHUNK_UNIT)
    low, high = (min(nbytes, CHUNK_UNIT * (units * c // nchunks)) for c in (chunk, chunk + 1))
    return low, high


def tile_count(nchunks: int, nbytes: int, tile: int) -> int:
    """Return how often the LOOP must run for a block of ``nchunks`` chunks."""
    units = -(-nbytes // CHUNK_UNIT)
    return max(1, -(-CHUNK_UNIT * -(-units // nchunks) // tile))


class Memory(NamedTuple):
    """A user's array: the bytes of the message from ``base`` on."""

    content: Bytes
    base: int


class World:
    """The memory and the counts of all ranks."""

    def __init__(
        self,
        programs: Sequence[Program],
        inputs: Sequence[npt.NDArray[Any]],
        dtype: DType,
        op: ReduceOp,
        collective: Collective,
        blocks: Sequence[int],
        tile: int,
        slots: int,
        in_place: bool,
    ) -> None:
        """Lay out buffers for one call on blocks of so many bytes."""
        self.dtype, self.op, self.tile, self.slots = dtype, op, tile, slots
        self.inputs: list[Memory] = []
        self.outputs: list[Memory] = []
        size, begin = len(programs), [0, *accumulate(blocks)]
        for rank, x in enumerate(inputs):
            given, kept = collective.in_blocks(rank, size), collective.out_blocks(rank, size)
            into, out = begin[given.start], begin[kept.start]
            source = x.view(np.uint8)
            target = _poison(begin[kept.stop] - out)
            if in_place and len(kept) <= len(given):
                target = source[out - into :][: target.size]
            elif in_place:
                target[into - out :][: source.size] = source
                source = target[into - out :][: source.size]
            self.inputs.append(Memory(source, into))
            self.outputs.append(Memory(target, out))
        parts = programs[0].nchunks // len(blocks)
        #: where every chunk begins, and its bytes
        self.at: list[int] = []
        self.length: list[int] = []
        for start, nbytes in zip(begin, blocks, strict=False):
            for part in range(parts):
                low, high = bounds(part, parts, nbytes)
                self.at.append(start + low)
                self.length.append(high - low)
        self.ntiles = max(tile_count(parts, nbytes, tile) for nbytes in blocks)
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
            if self.t < self.world.ntiles:
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
        values = [np.concatenate(self._pieces(s)).view(kind) for s in i.sources]
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
        w = self.world
        begin = self.t * w.tile  # in every chunk
        chunks = range(o.chunk, o.chunk + o.nchunks)
        lengths = [max(0, min(w.length[c] - begin, w.tile)) for c in chunks]
        if o.space is Space.SCRATCH:
            return [self.scratch[o.place + k][:n] for k, n in enumerate(lengths)]
        if o.space is Space.SLOT:
            slot = self._next_slot(o)
            return [slot[a:b] for a, b in pairwise(accumulate(lengths, initial=0))]
        owner = o.edge if o.space in (Space.PEER_IN, Space.PEER_OUT) else self.program.rank
        content, base = (w.inputs if o.space in (Space.IN, Space.PEER_IN) else w.outputs)[owner]
        pieces = []
        for k, n in enumerate(lengths):
            at = w.at[o.place + k] + begin - base
            if n and not 0 <= at <= content.size - n:
                raise ScheduleError(
                    f"rank {self.program.rank} touches {o.space.name} of rank {owner} at chunk "
                    f"{o.place + k}, which it does not have"
                )
            pieces.append(content[max(at, 0) :][:n])
        return pieces

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
