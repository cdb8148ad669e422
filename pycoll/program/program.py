"""Program: one rank's lowered instructions, as Python values and as the bytes native code loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pycoll.errors import ScheduleError, counted
from pycoll.program import isa
from pycoll.program.isa import Direction, EdgeKind, Flag, Op, ProgramFlag, Space


class Edge(NamedTuple):
    """One end of an edge that this rank holds."""

    peer: int  #: rank at the other end; this rank itself for LOCAL
    kind: EdgeKind
    direction: Direction
    channel: int  #: DATA: channel of both ends; LOCAL: signalling channel; DONE: 0
    other: int = 0  #: LOCAL: waiting channel


class Operand(NamedTuple):
    """A range of chunks somewhere; see ``isa.Space``."""

    space: Space
    edge: int  #: SLOT: index of the edge; PEER_*: rank; else 0
    place: int  #: first place; 0 for a SLOT
    chunk: int  #: first chunk of the value
    nchunks: int


class Instruction(NamedTuple):
    """One instruction; fields that the opcode does not use are 0 or empty."""

    op: Op
    edge: int = 0
    sources: tuple[Operand, ...] = ()
    destinations: tuple[Operand, ...] = ()
    flags: Flag = Flag(0)
    target: int = 0


@dataclass(frozen=True)
class Program:
    """One rank's side of a verified collective.

    ``instructions`` holds the channels one behind the other, each closed by END;
    ``channel_starts[c]`` is the index of channel c's first instruction.
    """

    rank: int
    size: int
    digest: int  #: 64 bits, equal on all ranks of one lowered schedule
    nchunks: int
    nscratch: int
    widest: int
    flags: ProgramFlag
    edges: tuple[Edge, ...]
    channel_starts: tuple[int, ...]
    instructions: tuple[Instruction, ...]

    def __repr__(self) -> str:
        parts = counted(len(self.instructions), "instruction")
        channels = counted(len(self.channel_starts), "channel")
        return f"<pycoll Program of rank {self.rank} of {self.size}: {parts} in {channels}>"

    def to_bytes(self) -> bytes:
        """Return the blob that ``pc_program_load`` and ``from_bytes`` read."""
        operands: list[Operand] = []
        packed: list[bytes] = []
        for i in self.instructions:
            first = len(operands) if i.sources or i.destinations else 0
            operands += i.sources + i.destinations
            packed.append(
                isa.INSTRUCTION.pack(
                    i.op, i.flags, len(i.sources), len(i.destinations), i.edge, first, i.target
                )
            )
        header = isa.HEADER.pack(
            isa.MAGIC,
            isa.VERSION,
            self.flags,
            self.digest,
            self.rank,
            self.size,
            self.nchunks,
            self.nscratch,
            self.widest,
            len(self.channel_starts),
            len(self.edges),
            len(self.instructions),
            len(operands),
            0,
        )
        return b"".join(
            [
                header,
                *(isa.CHANNEL_START.pack(s) for s in self.channel_starts),
                *(isa.EDGE.pack(*e) for e in self.edges),
                *packed,
                *(isa.OPERAND.pack(*o) for o in operands),
            ]
        )

    @classmethod
    def from_bytes(cls, blob: bytes) -> Program:
        """Read a blob; ScheduleError says which field is wrong."""
        if len(blob) < isa.HEADER.size:
            raise ScheduleError(f"program has {len(blob)} bytes, want at least {isa.HEADER.size}")
        names = [name for name, _, _ in isa.HEADER_FIELDS]
        h = dict(zip(names, isa.HEADER.unpack_from(blob), strict=True))
        if (h["magic"], h["version"]) != (isa.MAGIC, isa.VERSION):
            raise ScheduleError(
                f"program has magic {h['magic']:#x} version {h['version']}, "
                f"want {isa.MAGIC:#x} version {isa.VERSION}"
            )
        counts = (
            (h["nchannels"], isa.CHANNEL_START),
            (h["nedges"], isa.EDGE),
            (h["ninstructions"], isa.INSTRUCTION),
            (h["noperands"], isa.OPERAND),
        )
        want = isa.HEADER.size + sum(n * s.size for n, s in counts)
        if len(blob) != want:
            raise ScheduleError(f"program has {len(blob)} bytes, want {want} by its header")
        tables, at = [], isa.HEADER.size
        for n, record in counts:
            tables.append(list(record.iter_unpack(blob[at : at + n * record.size])))
            at += n * record.size
        starts, edges, instructions, operands = tables
        try:
            ops = [Operand(Space(o[0]), *o[1:]) for o in operands]
            decoded = []
            for op, flags, nsrc, ndst, edge, first, target in instructions:
                if first + nsrc + ndst > len(ops):
                    raise ScheduleError(f"operand {first + nsrc + ndst} of {len(ops)}")
                srcs = tuple(ops[first : first + nsrc])
                dsts = tuple(ops[first + nsrc : first + nsrc + ndst])
                decoded.append(Instruction(Op(op), edge, srcs, dsts, Flag(flags), target))
            return cls(
                rank=h["rank"],
                size=h["size"],
                digest=h["digest"],
                nchunks=h["nchunks"],
                nscratch=h["nscratch"],
                widest=h["widest"],
                flags=ProgramFlag(h["flags"]),
                edges=tuple(Edge(e[0], EdgeKind(e[1]), Direction(e[2]), e[3], e[4]) for e in edges),
                channel_starts=tuple(s for (s,) in starts),
                instructions=tuple(decoded),
            )
        except ValueError as error:
            raise ScheduleError(f"program has an unknown code: {error}") from None
