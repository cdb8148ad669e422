"""Programs written by hand, for planting one fault at a time."""

from __future__ import annotations

from collections.abc import Sequence

from mutants import relink

from pycoll.program.isa import Direction, EdgeKind, Flag, Op, ProgramFlag, Space
from pycoll.program.program import Edge, Instruction, Operand, Program

Code = list[Instruction]


def data_to(peer: int, channel: int = 0) -> Edge:
    return Edge(peer, EdgeKind.DATA, Direction.SEND, channel)


def data_from(peer: int, channel: int = 0) -> Edge:
    return Edge(peer, EdgeKind.DATA, Direction.RECV, channel)


def done_to(peer: int) -> Edge:
    return Edge(peer, EdgeKind.DONE, Direction.SEND, 0)


def done_from(peer: int) -> Edge:
    return Edge(peer, EdgeKind.DONE, Direction.RECV, 0)


def local(rank: int, channel: int, other: int) -> tuple[Edge, Edge]:
    """Return both ends of the edge between two channels of a rank."""
    ends = (Direction.SEND, Direction.RECV)
    first, second = (Edge(rank, EdgeKind.LOCAL, end, channel, other) for end in ends)
    return first, second


def at(space: Space, chunk: int, n: int = 1, *, place: int | None = None, edge: int = 0) -> Operand:
    return Operand(space, edge, chunk if place is None else place, chunk, n)


def inp(chunk: int, n: int = 1) -> Operand:
    return at(Space.IN, chunk, n)


def out(chunk: int, n: int = 1) -> Operand:
    return at(Space.OUT, chunk, n)


def slot(edge: int, chunk: int, n: int = 1) -> Operand:
    return at(Space.SLOT, chunk, n, place=0, edge=edge)


def scratch(place: int, chunk: int, n: int = 1) -> Operand:
    return at(Space.SCRATCH, chunk, n, place=place)


def peer_in(rank: int, chunk: int) -> Operand:
    return at(Space.PEER_IN, chunk, edge=rank)


def peer_out(rank: int, chunk: int) -> Operand:
    return at(Space.PEER_OUT, chunk, edge=rank)


def wait(edge: int) -> Instruction:
    return Instruction(Op.WAIT, edge)


def signal(edge: int) -> Instruction:
    return Instruction(Op.SIGNAL, edge)


def move(*sources: Operand, to: Operand | Sequence[Operand], scale: bool = False) -> Instruction:
    into = (to,) if isinstance(to, Operand) else tuple(to)
    flags = Flag.SCALE if scale else Flag(0)
    return Instruction(Op.REDUCE_COPY, 0, sources, into, flags)


def loop(*body: Instruction, tail: Sequence[Instruction] = ()) -> Code:
    return [Instruction(Op.LOOP), *body, Instruction(Op.END_LOOP), *tail, Instruction(Op.END)]


def program(
    rank: int,
    size: int,
    *channels: Code,
    edges: Sequence[Edge] = (),
    nchunks: int = 1,
    nscratch: int = 0,
    widest: int = 1,
    direct: bool = False,
) -> Program:
    flags = ProgramFlag.DIRECT if direct else ProgramFlag(0)
    empty = Program(rank, size, 7, nchunks, nscratch, widest, flags, tuple(edges), (), ())
    return relink(empty, list(channels))


def exchange(rank: int) -> Program:
    """Return one side of an all-reduce of two ranks: send the input, fold what comes."""
    peer = 1 - rank
    code = loop(
        wait(0),
        move(inp(0), to=slot(0, 0)),
        signal(0),
        wait(1),
        move(inp(0), slot(1, 0), to=out(0)),
        signal(1),
    )
    return program(rank, 2, code, edges=(data_to(peer), data_from(peer)))


def direct_exchange(rank: int) -> Program:
    """Return one side of a zero-copy all-reduce of two ranks: each folds one of two chunks."""
    peer = 1 - rank
    code = loop(
        move(*sorted_by_rank(rank), to=(out(rank), peer_out(peer, rank))),
        tail=(signal(0), wait(1)),
    )
    edges = (done_to(peer), done_from(peer))
    return program(rank, 2, code, edges=edges, nchunks=2, direct=True)


def sorted_by_rank(rank: int) -> tuple[Operand, Operand]:
    own, other = inp(rank), peer_in(1 - rank, rank)
    return (own, other) if rank == 0 else (other, own)
