"""Lowering: a Schedule becomes one Program per rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

from pycoll.errors import ScheduleError, UsageError
from pycoll.passes import (
    Completes,
    CountKind,
    End,
    Item,
    Limits,
    Location,
    Lowered,
    Move,
    Wait,
    Where,
    feasible,
    mapped,
    staged,
)
from pycoll.program.isa import (
    MAX_DESTINATIONS,
    MAX_SOURCES,
    VERSION,
    Direction,
    EdgeKind,
    Flag,
    Op,
    ProgramFlag,
    Space,
)
from pycoll.program.program import Edge, Instruction, Operand, Program
from pycoll.schedule import Algorithm, Placement, Schedule, schedule
from pycoll.schedule.evaluate import evaluate

LIMITS = Limits(MAX_SOURCES, MAX_DESTINATIONS)
SPACES = tuple(Space)  # by number: a call of the enum costs more
LOWERING = 1  #: raise when the same schedule lowers to other Programs than before


def compile_program(
    algorithm: Algorithm,
    size: int,
    rank: int,
    *,
    direct: bool = False,
    average: bool = False,
    placement: Placement | None = None,
) -> Program:
    """Return ``rank``'s Program; with ``direct``, NotDirect where there is no zero-copy form."""
    s = schedule(algorithm, size, placement)
    return lower(s, rank, direct=direct, average=average)


def compile_all(
    algorithm: Algorithm,
    size: int,
    *,
    direct: bool = False,
    average: bool = False,
    placement: Placement | None = None,
) -> tuple[Program, ...]:
    """Return the Programs of all ranks."""
    s = schedule(algorithm, size, placement)
    return tuple(lower(s, rank, direct=direct, average=average) for rank in range(size))


def lower(s: Schedule, rank: int, *, direct: bool = False, average: bool = False) -> Program:
    """Return ``rank``'s Program of a schedule."""
    if average and not s.collective.reduces:
        raise UsageError(f"{s.name}: {s.collective.name} folds nothing, so it has no average")
    completes = _completes(s) if average else (frozenset(),) * s.size
    if direct:
        side = _mapped(s, completes)[rank]
    else:
        side = staged(s, rank, completes, LIMITS, _feasible(s))
    edges, starts, instructions = _encode(side)
    return Program(
        rank=rank,
        size=s.size,
        digest=_digest(s, direct, average),
        nchunks=s.nchunks,
        nscratch=side.nscratch,
        widest=s.widest,
        flags=ProgramFlag.DIRECT if direct else ProgramFlag(0),
        edges=edges,
        channel_starts=starts,
        instructions=instructions,
    )


@lru_cache(maxsize=64)
def _completes(s: Schedule) -> Completes:
    found = evaluate(s)
    if found.mixed:
        raise ScheduleError(found.mixed)
    return found.completes


@lru_cache(maxsize=64)
def _feasible(s: Schedule) -> bool:
    return feasible(s)


@lru_cache(maxsize=8)
def _mapped(s: Schedule, completes: Completes) -> list[Lowered]:
    return mapped(s, completes, LIMITS)


def _digest(s: Schedule, direct: bool, average: bool) -> int:
    text = f"{s.digest} {direct} {average} {LOWERING} {VERSION} {LIMITS}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _encode(
    side: Lowered,
) -> tuple[tuple[Edge, ...], tuple[int, ...], tuple[Instruction, ...]]:
    edges: dict[End, int] = {}
    starts: list[int] = []
    code: list[Instruction] = []

    def edge(end: End) -> int:
        return edges.setdefault(end, len(edges))

    def write(items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Move):
                code.append(_reduce_copy(item, edge))
            else:
                op = Op.WAIT if isinstance(item, Wait) else Op.SIGNAL
                code.append(Instruction(op, edge(item.end)))

    for channel in range(max(side.channels, default=0) + 1):
        starts.append(len(code))
        if channel in side.channels:
            loop = len(code)
            code.append(Instruction(Op.LOOP))
            write(side.channels[channel])
            code[loop] = Instruction(Op.LOOP, target=len(code))
            code.append(Instruction(Op.END_LOOP, target=loop))
        if channel == 0:
            write(side.tail)
        code.append(Instruction(Op.END))
    return tuple(_edge(end) for end in edges), tuple(starts), tuple(code)


def _edge(end: End) -> Edge:
    direction = Direction.SEND if end.sending else Direction.RECV
    return Edge(end.peer, EdgeKind(end.kind), direction, end.channel, end.other)


def _reduce_copy(move: Move, edge: Callable[[End], int]) -> Instruction:
    def operand(place: Location, sending: bool) -> Operand:
        number = place.peer
        if place.where is Where.SLOT:
            number = edge(End(CountKind.DATA, sending, place.peer, move.channel))
        return Operand(SPACES[place.where], number, place.place, place.chunk, place.nchunks)

    return Instruction(
        Op.REDUCE_COPY,
        sources=tuple(operand(s, False) for s in move.sources),
        destinations=tuple(operand(d, True) for d in move.destinations),
        flags=Flag.SCALE if move.scale else Flag(0),
    )
