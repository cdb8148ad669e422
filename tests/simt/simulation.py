"""Cases for the driver: collectives with their data and what the reference makes of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.dtypes import FLOAT64, DType, ReduceOp
from pycoll.program import reference
from pycoll.program.arithmetic import narrow, storage
from pycoll.program.isa import MAX_DESTINATIONS
from pycoll.program.join import joined
from pycoll.program.lower import compile_all, facts_of
from pycoll.program.program import Program
from pycoll.schedule import Algorithm, schedule

Array = npt.NDArray[Any]
SLOT_BYTES = 1 << 14
LAUNCHES = 3  #: back to back: every slot is used again
THREADS = 4  #: of a block


@cache
def programs(
    algorithm: Algorithm, size: int, average: bool, direct: bool = False
) -> tuple[Program, ...]:
    """Return what runs on GPUs."""
    lowered = compile_all(algorithm, size, average=average, direct=direct)
    if not (direct or facts_of(schedule(algorithm, size)).fused):
        return lowered
    return tuple(joined(program, MAX_DESTINATIONS) for program in lowered)


@dataclass(frozen=True)
class Case:
    """One collective on all ranks, launched some times in a row with other data each time."""

    algorithm: Algorithm
    size: int
    dtype: DType
    op: ReduceOp
    counts: tuple[int, ...]  #: elements of each block, in the order of ranks
    root: int = 0
    tile: int = 64
    slots: int = 2
    lanes: int = 1
    packets: bool = False
    direct: bool = False  #: beside the staged form
    stray: int = -1  #: a rank whose arrays do not lie in its heap
    segments: int = 0  #: 1: arrays lie in a segment beside the heap; 2: which comes and goes
    multicast: int = 0  #: 1: all heaps have a multicast address; 2: of a switch that may round
    apart: int = -1  #: a rank whose arrays lie elsewhere in its heap than those of the others
    shift: int = 64  #: by how many bytes
    uneven: int = 0  #: bytes by which outputs are off where inputs are not
    in_place: bool = False
    offset: int = 0  #: bytes by which arrays are off a 64-byte boundary
    first: int = 0  #: messages that seem to have passed on every edge
    timeout: float = 60.0
    launches: int = LAUNCHES
    seed: int = 0
    signature: int = 1
    foreign: int = -1  #: a rank that is in another call
    otherwise: int = -1  #: a rank that takes packets where the others do not, or the other way
    salts: tuple[int, ...] = ()  #: of each rank: which calls it refused before
    in_graph: bool = False  #: which launches it

    @property
    def programs(self) -> tuple[Program, ...]:
        return programs(self.algorithm, self.size, self.op is ReduceOp.AVG)

    @property
    def name(self) -> str:
        form = "packets" if self.packets else "direct" if self.direct else "plain"
        return (
            f"{self.algorithm.name} size={self.size} {self.dtype.name} {self.op.name} "
            f"counts={self.counts} root={self.root} tile={self.tile} lanes={self.lanes} {form} "
            f"{'in place ' if self.in_place else ''}offset={self.offset}"
        )

    def extents(self, rank: int) -> list[range]:
        """Return the blocks, in memory's order, of a rank's input and of its output."""
        virtual, c, n = (rank - self.root) % self.size, self.algorithm.collective, len(self.counts)
        has = [len(c.in_blocks(virtual, self.size)), len(c.out_blocks(virtual, self.size))]
        return [range(k) if k in (0, n) else range(rank, rank + 1) for k in has]

    def pack(self) -> bytes:
        """Return what the driver reads."""
        words: list[bytes] = [blob(self.name.encode())]
        blocks = [count * self.dtype.itemsize for count in self.counts]
        put(
            words,
            self.size,
            self.slots,
            SLOT_BYTES,
            self.first,
            self.launches,
            THREADS,
            self.in_place,
            self.offset,
            self.in_graph,
            int(self.timeout * 1e9),
            self.dtype.code,
            self.op,
            self.tile,
            self.root,
            self.lanes,
            self.packets,
            self.multicast,
            len(blocks),
            *blocks,
        )
        results = [self.launch(number) for number in range(self.launches)]
        for rank in range(self.size):
            put(words, self.signature + (rank == self.foreign))
            put(words, rank == self.otherwise)
            put(words, self.salts[rank] if self.salts else 0)
            for extent in self.extents(rank):
                put(words, extent.start, len(extent))
            virtual = (rank - self.root) % self.size
            words.append(blob(self.programs[virtual].to_bytes()))
            direct = b""
            if self.direct:
                average = self.op is ReduceOp.AVG
                direct = programs(self.algorithm, self.size, average, True)[virtual].to_bytes()
            words.append(blob(direct))
            put(words, (1 + self.segments) * (self.direct and rank != self.stray))
            put(words, self.shift if rank == self.apart else 0, self.uneven)
            for inputs, outputs in results:
                words += [blob(inputs[rank].tobytes()), blob(outputs[rank].tobytes())]
        return b"".join(words)

    def launch(self, number: int) -> tuple[list[Array], list[Array]]:
        """Return each rank's input and the output that it has to get."""
        begin = [0, *accumulate(self.counts)]
        ranks = [(virtual + self.root) % self.size for virtual in range(self.size)]
        extents = [self.extents(rank) for rank in ranks]
        given = [
            data(self.dtype, (self.seed, number, rank), begin[e.stop] - begin[e.start])
            if (e := extent[0])
            else data(self.dtype, (0,), 0)
            for rank, extent in zip(ranks, extents, strict=True)
        ]
        found = reference.run(
            self.programs,
            [self.turned(x, e[0], False).copy() for x, e in zip(given, extents, strict=True)],
            self.dtype,
            self.op,
            tile=1 << 20,
            slots=self.slots,
            collective=self.algorithm.collective,
            counts=self.counts
            if len(self.counts) == 1
            else self.counts[self.root :] + self.counts[: self.root],
        )
        inputs, outputs = dict(zip(ranks, given, strict=True)), {}
        for rank, extent, x in zip(ranks, extents, found, strict=True):
            outputs[rank] = self.turned(x, extent[1], True)
        return [inputs[r] for r in range(self.size)], [outputs[r] for r in range(self.size)]

    def turned(self, x: Array, extent: range, back: bool) -> Array:
        """Return an array of several blocks as it is when they are counted from the root on."""
        if len(extent) < 2:
            return x
        cut = sum(self.counts[self.root :] if back else self.counts[: self.root])
        return np.concatenate([x[cut:], x[:cut]])


def data(dtype: DType, seed: Sequence[int], count: int) -> Array:
    """Return numbers that no fold turns into NaN: what that gives is another suite's matter."""
    rng = np.random.default_rng(tuple(seed))
    kind = storage(dtype)
    if dtype.name.startswith(("float", "bfloat")):
        wide = rng.standard_normal(count).astype(np.float64 if dtype is FLOAT64 else np.float32)
        return np.asarray(narrow(wide, dtype), kind)
    return rng.integers(0, 12, count).astype(kind)


def put(words: list[bytes], *numbers: int) -> None:
    words.append(struct.pack(f"<{len(numbers)}Q", *(int(n) for n in numbers)))


def blob(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content + bytes(-len(content) % 8)


def write(path: Path, cases: Iterable[Case]) -> int:
    """Write a file for the driver; return how many cases it has."""
    packed = [case.pack() for case in cases]
    path.write_bytes(struct.pack("<Q", len(packed)) + b"".join(packed))
    return len(packed)
