"""Lowering: a rank's steps become its Program.

What a Program says depends on its own rank's steps, and on a few answers about all ranks (`Facts`;
which steps end an average). Whoever has all ranks' steps finds these out; whoever is told them
needs no others' steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from pycoll import collector
from pycoll.algorithms import BUILTIN
from pycoll.errors import ScheduleError, UsageError
from pycoll.passes import (
    CountKind,
    End,
    Item,
    Limits,
    Location,
    Lowered,
    Move,
    Wait,
    Where,
    check_direct,
    feasible,
    mapped,
    staged,
)
from pycoll.program.isa import (
    HOST_DESTINATIONS,
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
from pycoll.schedule import (
    FLAT,
    Algorithm,
    NotDirect,
    Placement,
    RankSteps,
    Schedule,
    rank_steps,
    schedule,
)
from pycoll.schedule.evaluate import evaluate

LIMITS = Limits(MAX_SOURCES, HOST_DESTINATIONS)  # what runs on a GPU is `joined` afterwards
SPACES = tuple(Space)  # by number: a call of the enum costs more
LOWERING = 2  #: raise when the same schedule lowers to other Programs than before


class Facts(NamedTuple):
    """What one rank's Program depends on besides its own steps: questions about all ranks."""

    widest: int  #: chunks of the widest message of any rank
    fused: bool  #: whether receives may be fused with the sends behind them, see `feasible`
    edges: int  #: that come into one rank and carry messages, the most of any rank


def compile_program(
    algorithm: Algorithm,
    size: int,
    rank: int,
    *,
    direct: bool = False,
    average: bool = False,
    placement: Placement | None = None,
) -> Program:
    """Return ``rank``'s Program; with ``direct``, NotDirect where there is no zero-copy form.

    All ranks are traced, as what is not known of them is found out.
    """
    s = schedule(algorithm, size, placement)
    return _lower(s, rank, direct, average, identity(algorithm, size, placement))


def compile_all(
    algorithm: Algorithm,
    size: int,
    *,
    direct: bool = False,
    average: bool = False,
    placement: Placement | None = None,
) -> tuple[Program, ...]:
    """Return the Programs of all ranks."""
    s, number = schedule(algorithm, size, placement), identity(algorithm, size, placement)
    return tuple(_lower(s, rank, direct, average, number) for rank in range(size))


def compile_own(
    algorithm: Algorithm,
    size: int,
    rank: int,
    facts: Facts,
    *,
    direct: bool = False,
    placement: Placement | None = None,
) -> Program:
    """Return ``rank``'s Program from what is known of all ranks: only this one is traced.

    For a direct form the ranks that it exchanges messages with are traced, too. That of an average
    is the same `scaled`.

    Args:
        algorithm: What is lowered.
        size: Number of ranks.
        rank: Whose Program it is.
        facts: Of all ranks, see `facts_of`.
        direct: The zero-copy form, which there is.
        placement: Which ranks lie close together.
    """
    place = placement or FLAT
    with collector.paused():
        mine, none = rank_steps(algorithm, size, rank, place), frozenset[int]()
        if direct:
            side = mapped(mine, lambda r: rank_steps(algorithm, size, r, place), none, LIMITS)
        else:
            side = staged(mine, none, LIMITS, facts.fused)
        return _program(mine, side, facts, identity(algorithm, size, placement), direct)


def scaled(program: Program, instructions: Collection[int]) -> Program:
    """Return the Program of an average: that of the sum, whose last folds divide."""
    code = list(program.instructions)
    for number in instructions:
        code[number] = code[number]._replace(flags=Flag.SCALE)
    text = f"{program.digest} average"
    return replace(program, digest=_hash(text), instructions=tuple(code))


def scales_of(program: Program) -> frozenset[int]:
    """Return the instructions that divide."""
    code = enumerate(program.instructions)
    return frozenset(number for number, i in code if i.flags & Flag.SCALE)


def lower(s: Schedule, rank: int, *, direct: bool = False, average: bool = False) -> Program:
    """Return ``rank``'s Program of a schedule."""
    return _lower(s, rank, direct, average, s.digest)


def identity(algorithm: Algorithm, size: int, placement: Placement | None = None) -> int:
    """Return 64 bits that tell what is run, the same on all ranks that run the same.

    They come from the source, so they tell apart what has different sources; that a rank does what
    was proved is told by its Program. All ranks run the same version, so a built-in is its name.
    """
    a = algorithm
    source = "built-in" if a in BUILTIN else a.digest()
    return _hash(f"{a.collective.name} {a.name} {source} {size} {(placement or FLAT).digest}")


@lru_cache(maxsize=64)
def facts_of(s: Schedule) -> Facts:
    """Return what is asked about all ranks of a schedule."""
    edges = (
        len({(p, step.channel) for step in steps for p in step.senders(rank)})
        for rank, steps in enumerate(s.ranks)
    )
    return Facts(s.widest, feasible(s), max(edges, default=0))


@lru_cache(maxsize=64)
def completes_of(s: Schedule) -> tuple[frozenset[int], ...]:
    """Return, for each rank, the steps that end an average.

    Raises:
        UsageError: Nothing is folded.
        ScheduleError: A step completes some of its chunks and not others.
    """
    if not s.collective.reduces:
        raise UsageError(f"{s.name}: {s.collective.name} folds nothing, so it has no average")
    found = evaluate(s)
    if found.mixed:
        raise ScheduleError(found.mixed)
    return found.completes


@lru_cache(maxsize=8)
def _check_direct(s: Schedule) -> NotDirect | None:
    try:
        check_direct(s, LIMITS)
    except NotDirect as error:
        return error
    return None


def _lower(s: Schedule, rank: int, direct: bool, average: bool, number: int) -> Program:
    ending = completes_of(s)[rank] if average else frozenset[int]()
    facts, mine = facts_of(s), s.of(rank)
    if not direct:
        side = staged(mine, ending, LIMITS, facts.fused)
    elif error := _check_direct(s):
        raise NotDirect(str(error))
    else:
        side = mapped(mine, s.of, ending, LIMITS)
    program = _program(mine, side, facts, number, direct)
    return scaled(program, scales_of(program)) if average else program


def _program(mine: RankSteps, side: Lowered, facts: Facts, number: int, direct: bool) -> Program:
    edges, starts, instructions = _encode(side)
    text = f"{number} {direct} {facts.widest} {facts.fused} {LOWERING} {VERSION} {LIMITS}"
    return Program(
        rank=mine.rank,
        size=mine.size,
        digest=_hash(text),
        nchunks=mine.nchunks,
        nscratch=side.nscratch,
        widest=facts.widest,
        flags=ProgramFlag.DIRECT if direct else ProgramFlag(0),
        edges=edges,
        channel_starts=starts,
        instructions=instructions,
    )


def _hash(text: str) -> int:
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
