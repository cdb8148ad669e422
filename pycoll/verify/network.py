"""The ranks' Programs as one network of threads and edges, after every check that needs no run.

A thread is one channel of one rank. Its code is the channel's instructions one for one, with
edges and places resolved to indices of the whole network, so that `SymbolicRun` only runs them.

A network holds all ranks, or with a group the representatives of all ranks alone: then an edge
stands for those that the group makes of it. Its *twist* is the element that brings the class of its
source to the rank that the representative at its target hears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pycoll.errors import ScheduleError
from pycoll.program.isa import (
    MAX_CHANNELS,
    MAX_DESTINATIONS,
    MAX_SOURCES,
    Direction,
    EdgeKind,
    Flag,
    Op,
    ProgramFlag,
    Space,
)
from pycoll.program.program import Edge, Instruction, Operand, Program
from pycoll.schedule.collective import Collective
from pycoll.verify.finding import At, finding
from pycoll.verify.symmetry.group import Group, Rotation

# What a thread does in one step; the argument is an edge unless said otherwise.
FOLD = 0  #: (n, chunk, sources, destinations, scale)
AWAIT_MESSAGE = 1  #: until the next message is in its slot
AWAIT_SLOT = 2  #: until the next slot is free
FILL = 3  #: the message is in its slot
CONSUME = 4  #: the message has been read
RAISE = 5  #: raise a plain count (LOCAL, DONE)
AWAIT_COUNT = 6  #: until a plain count has been raised once more
BEGIN = 7  #: first instruction of the loop
AGAIN = 8  #: (step behind BEGIN)
STOP = 9

# Where an operand lies: (kind, index).
OUTPUT = 0  #: OUT of some rank: index into the run's memory
INPUT = 1  #: IN of some rank: index is that of OUT, the same memory when in place
SCRATCH = 2  #: index into the run's memory
MESSAGE = 3  #: slot: index of the edge

Step = tuple[Any, ...]


class Thread(NamedTuple):
    """One channel of one rank."""

    program: Program
    channel: int
    code: list[Step]

    def at(self, step: int) -> At:
        """Return the place of a step, for a finding."""
        return At(self.program, self.channel, self.program.channel_starts[self.channel] + step)


class NetworkEdge(NamedTuple):
    """An edge of the network and the threads at its two ends."""

    kind: EdgeKind
    source: int
    target: int
    twist: int = 0  #: the element between the ranks of source and target; 0 without a group


@dataclass
class Network:
    """Threads, edges and the shape of memory: rank r's OUT begins at ``r * stride``."""

    size: int
    held: int  #: ranks of which it has the Programs: all, or those below it as representatives
    nchunks: int
    stride: int
    direct: bool
    in_place: bool  #: IN and OUT may be one memory
    equal_blocks: bool  #: a chunk may lie in the place of any other
    group: Group  #: that makes all ranks of those it holds; of one element where it holds all
    given: Mapping[int, range]  #: chunks that IN of each rank has
    kept: Mapping[int, range]  #: chunks that OUT of each rank has
    threads: list[Thread] = field(default_factory=list)
    edges: list[NetworkEdge] = field(default_factory=list)
    thread_of: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Whether two threads can reach the same memory, so that order must be proved."""
        return self.direct or len(self.threads) > self.held

    def owner(self, index: int) -> int:
        """Return the rank that a memory index belongs to."""
        return index // self.stride % self.held

    def place(self, index: int) -> str:
        """Name a memory index."""
        place = index % self.stride
        if place < self.nchunks:
            return f"chunk {place} of rank {self.owner(index)}"
        return f"scratch place {place - self.nchunks} of rank {self.owner(index)}"


def build(
    programs: Sequence[Program], collective: Collective, group: Group | None = None
) -> Network:
    """Check the Programs one by one and against each other; return their network.

    With a group they are those of the representatives, in the order of their ranks.
    """
    if not programs:
        raise ScheduleError("there are no programs to verify")
    group = group or Rotation(1, len(programs), 0)
    size, first, ranks = group.size, programs[0], range(len(programs))
    if first.nchunks < 1:
        raise ScheduleError(f"program 0 has {first.nchunks} chunks, want at least 1")
    collective.check_chunks(first.nchunks, size)
    network = Network(
        size=size,
        held=len(programs),
        group=group,
        nchunks=first.nchunks,
        in_place=collective.in_place,
        equal_blocks=collective.equal_blocks,
        given={rank: collective.in_extent(rank, size, first.nchunks) for rank in ranks},
        kept={rank: collective.out_extent(rank, size, first.nchunks) for rank in ranks},
        stride=first.nchunks + max(p.nscratch for p in programs),
        direct=bool(first.flags & ProgramFlag.DIRECT),
    )
    for rank, program in enumerate(programs):
        _check_header(rank, program, first, size)
        for channel in range(len(program.channel_starts)):
            network.thread_of[rank, channel] = len(network.threads)
            network.threads.append(Thread(program, channel, []))
    ends = _join(programs, network, group)
    widest = 1
    for rank, program in enumerate(programs):
        owners: dict[int, int] = {}  # scratch place -> channel
        for channel in range(len(program.channel_starts)):
            translator = _Translator(network, collective, program, channel, ends[rank], owners)
            translator.run(network.threads[network.thread_of[rank, channel]].code)
            widest = max(widest, translator.widest)
    if first.widest < widest:
        raise ScheduleError(
            f"the programs say that no slot holds more than {first.widest} chunks, "
            f"but one holds {widest}"
        )
    return network


def alone(program: Program, first: Program, collective: Collective, group: Group) -> Network:
    """Check one rank's Program of one channel; return its thread, on edges that lead nowhere.

    Its header must be that of ``first``, and its edges be such as ``build`` has checked.
    """
    rank = program.rank
    _check_header(rank, program, first, group.size)
    network = Network(
        size=group.size,
        held=group.size,
        nchunks=first.nchunks,
        in_place=collective.in_place,
        equal_blocks=collective.equal_blocks,
        group=group,
        given={rank: collective.in_extent(rank, group.size, first.nchunks)},
        kept={rank: collective.out_extent(rank, group.size, first.nchunks)},
        stride=first.nchunks + program.nscratch,
        direct=False,
        threads=[Thread(program, 0, [])],
        thread_of={(rank, 0): 0},
    )
    ends = [(number, 0) for number in range(len(program.edges))]
    translator = _Translator(network, collective, program, 0, ends, {})
    translator.run(network.threads[0].code)
    if first.widest < translator.widest:
        raise ScheduleError(
            f"program {rank} fills a slot with {translator.widest} chunks, but says that none "
            f"holds more than {first.widest}"
        )
    return network


def _check_header(rank: int, program: Program, first: Program, size: int) -> None:
    wanted = {
        "rank": rank,
        "size": size,
        "digest": first.digest,
        "nchunks": first.nchunks,
        "widest": first.widest,
        "flags": first.flags,
    }
    for name, want in wanted.items():
        got = getattr(program, name)
        if got != want:
            raise ScheduleError(f"program {rank} has {name} {got}, want {want}")
    starts, n = program.channel_starts, len(program.instructions)
    if not 1 <= len(starts) <= MAX_CHANNELS:
        raise ScheduleError(f"program {rank} has {len(starts)} channels, want 1 to {MAX_CHANNELS}")
    ends = (*starts[1:], n)
    if starts[0] != 0 or any(a >= b for a, b in zip(starts, ends, strict=True)):
        raise ScheduleError(
            f"program {rank}: channels start at {starts} among {n} instructions; "
            "want ascending starts from 0 and at least one instruction each"
        )


def _join(
    programs: Sequence[Program], network: Network, group: Group
) -> list[list[tuple[int, int]]]:
    """Join the ends of the edges; return for each rank's edge (index, the thread of this end)."""
    indices: dict[tuple[int, ...], int] = {}
    seen: set[tuple[int, ...]] = set()
    ends: list[list[tuple[int, int]]] = []
    for rank, program in enumerate(programs):
        mine = []
        for number, edge in enumerate(program.edges):
            what = f"rank {rank}, edge {number} ({_name(edge)})"
            key, thread = _key(rank, edge, group), _thread(rank, edge)
            if not 0 <= edge.peer < network.size or (edge.peer == rank) != (
                edge.kind == EdgeKind.LOCAL
            ):
                raise ScheduleError(f"{what}: rank {edge.peer} cannot be its peer")
            if thread not in network.thread_of:
                raise ScheduleError(f"{what}: rank {thread[0]} has no channel {thread[1]}")
            if edge.kind == EdgeKind.LOCAL and edge.channel == edge.other:
                raise ScheduleError(f"{what}: joins channel {edge.channel} with itself")
            if (edge.kind == EdgeKind.DONE) > network.direct:
                raise ScheduleError(f"{what}: a staged program touches no peer's memory")
            if (*key, edge.direction) in seen:
                raise ScheduleError(f"{what}: listed twice")
            seen.add((*key, edge.direction))
            index = indices.setdefault(key, len(indices))
            mine.append((index, network.thread_of[thread]))
        ends.append(mine)
    for key in indices:
        kind, (source, target, channel, other) = EdgeKind(key[0]), key[1:]
        for direction in Direction:
            if (*key, direction) not in seen:
                has, lacks = (target, source) if direction == Direction.SEND else (source, target)
                raise ScheduleError(
                    f"{kind.name} edge from rank {source} to rank {target}, channel {channel}: "
                    f"rank {has} lists its end, rank {lacks} does not list the {direction.name} end"
                )
        waiting = other if kind == EdgeKind.LOCAL else channel
        twist = group.element(source)
        sending = network.thread_of[group.rank(group.inverse(twist), source), channel]
        network.edges.append(NetworkEdge(kind, sending, network.thread_of[target, waiting], twist))
    return ends


def _key(rank: int, edge: Edge, group: Group) -> tuple[int, ...]:
    """Return the edge, moved to where its target is a representative."""
    sends = edge.direction == Direction.SEND
    source, target = (rank, edge.peer) if sends else (edge.peer, rank)
    back = group.inverse(group.element(target))
    source, target = group.rank(back, source), group.rank(back, target)
    return (edge.kind, source, target, edge.channel, edge.other)


def _thread(rank: int, edge: Edge) -> tuple[int, int]:
    waits = edge.kind == EdgeKind.LOCAL and edge.direction == Direction.RECV
    return rank, edge.other if waits else edge.channel


def _name(edge: Edge) -> str:
    word = "to" if edge.direction == Direction.SEND else "from"
    return f"{edge.kind.name} {word} rank {edge.peer}, channel {edge.channel}"


class _Translator:
    """Checks the instructions of one channel and resolves them into steps."""

    def __init__(
        self,
        network: Network,
        collective: Collective,
        program: Program,
        channel: int,
        ends: list[tuple[int, int]],
        scratch_owners: dict[int, int],
    ) -> None:
        self.network = network
        self.collective = collective
        self.program = program
        self.channel = channel
        self.ends = ends
        self.scratch_owners = scratch_owners
        self.thread = network.thread_of[program.rank, channel]
        self.widest = 0
        self.index = 0

    def fail(self, text: str) -> ScheduleError:
        return finding(ScheduleError, text, At(self.program, self.channel, self.index))

    def run(self, code: list[Step]) -> None:
        starts, instructions = self.program.channel_starts, self.program.instructions
        start = starts[self.channel]
        last = self.channel + 1 == len(starts)
        stop = len(instructions) if last else starts[self.channel + 1]
        self.loop = self.end_loop = -1
        for self.index in range(start, stop):
            i = instructions[self.index]
            if (i.op == Op.END) != (self.index == stop - 1):
                raise self.fail("END must be the last instruction of a channel, and only that")
            if i.op == Op.REDUCE_COPY:
                if self.loop < 0 or self.end_loop >= 0:
                    raise self.fail("moves data outside LOOP, which must enclose the channel")
                code.append(self.reduce_copy(i))
            elif i.op in (Op.WAIT, Op.SIGNAL):
                code.append(self.synchronise(i))
            elif i.op == Op.END:
                code.append((STOP,))
            else:
                code.append(self.bracket(i, start))
        if self.loop >= 0 > self.end_loop:
            raise self.fail("LOOP has no END_LOOP")

    def bracket(self, i: Instruction, start: int) -> Step:
        if i.op == Op.LOOP:
            if self.index != start:
                raise self.fail("LOOP must be the first instruction of its channel")
            self.loop = self.index
            return (BEGIN,)
        if self.loop < 0 or self.end_loop >= 0:
            raise self.fail("END_LOOP without LOOP")
        self.end_loop = self.index
        there = self.program.instructions[self.loop].target
        if i.target != self.loop or there != self.index:
            raise self.fail(
                f"LOOP #{self.loop} and END_LOOP #{self.index} name #{there} and #{i.target} "
                "as their partners"
            )
        return (AGAIN, self.loop - start + 1)

    def synchronise(self, i: Instruction) -> Step:
        if not 0 <= i.edge < len(self.ends):
            raise self.fail(f"names edge {i.edge} of {len(self.ends)}")
        edge = self.program.edges[i.edge]
        index, thread = self.ends[i.edge]
        if thread != self.thread:
            raise self.fail(f"uses an edge of another channel ({_name(edge)})")
        inside = self.loop >= 0 and self.end_loop < 0
        if inside == (edge.kind == EdgeKind.DONE):
            raise self.fail(
                "a DONE edge is used behind END_LOOP, every other edge between LOOP and END_LOOP"
            )
        sends = edge.direction == Direction.SEND
        if edge.kind == EdgeKind.DATA:
            if i.op == Op.WAIT:
                return (AWAIT_SLOT if sends else AWAIT_MESSAGE, index)
            return (FILL if sends else CONSUME, index)
        if sends != (i.op == Op.SIGNAL):
            raise self.fail(f"{i.op.name} on the {edge.direction.name} end of a plain count")
        return (RAISE if sends else AWAIT_COUNT, index)

    def reduce_copy(self, i: Instruction) -> Step:
        sources, destinations = i.sources, i.destinations
        if not 1 <= len(sources) <= MAX_SOURCES or not 1 <= len(destinations) <= MAX_DESTINATIONS:
            raise self.fail(
                f"has {len(sources)} sources and {len(destinations)} destinations, want 1 to "
                f"{MAX_SOURCES} and 1 to {MAX_DESTINATIONS}"
            )
        flags = int(i.flags)
        if flags not in (0, int(Flag.SCALE)):
            raise self.fail(f"has flags {flags:#x}, want 0 or SCALE")
        if (len(sources) > 1 or flags) and not self.collective.reduces:
            raise self.fail(f"folds or divides, but {self.collective.name} has no operation")
        chunk, n = sources[0].chunk, sources[0].nchunks
        if n < 1 or chunk < 0 or chunk + n > self.network.nchunks:
            raise self.fail(f"chunks {chunk} to {chunk + n - 1} of {self.network.nchunks}")
        into = [self.operand(o, chunk, n, True) for o in destinations]
        taken = [self.operand(o, chunk, n, False) for o in sources]
        # A piece is folded element by element, so source and destination may be one place but
        # not overlap in part: whether the old or the new value is read would depend on the order.
        for k, (kind, index) in enumerate(into):
            for other in into[:k]:
                if kind == other[0] and abs(index - other[1]) < (1 if kind == MESSAGE else n):
                    raise self.fail("its destinations overlap")
            for other in taken:
                if kind == other[0] != MESSAGE and 0 < abs(index - other[1]) < n:
                    raise self.fail("a source and a destination overlap in part")
        return (FOLD, n, chunk, taken, into, flags != 0)

    def operand(self, o: Operand, chunk: int, n: int, written: bool) -> tuple[int, int]:
        space, place, rank = o.space, o.place, self.program.rank
        if o.chunk != chunk or o.nchunks != n:
            raise self.fail(
                f"mixes chunks {chunk} to {chunk + n - 1} with {o.chunk} to "
                f"{o.chunk + o.nchunks - 1}"
            )
        if space == Space.SLOT:
            return self.slot(o, n, written)
        if space == Space.SCRATCH:
            return self.scratch(place, n)
        if place != chunk and not self.network.equal_blocks:
            raise self.fail(f"chunk {chunk} lies at place {place} of {space.name}")
        if space in (Space.PEER_IN, Space.PEER_OUT):
            if not self.network.direct:
                raise self.fail("touches a peer's memory, but the program is not DIRECT")
            rank = o.edge
            if not 0 <= rank < self.network.size or rank == self.program.rank:
                raise self.fail(f"{space.name} of rank {rank}, which is no peer")
        index, reads_input = rank * self.network.stride + place, space in (Space.IN, Space.PEER_IN)
        if reads_input and written:
            raise self.fail(f"writes {space.name}")
        has = (self.network.given if reads_input else self.network.kept)[rank]
        if not has.start <= place <= has.stop - n:
            raise self.fail(
                f"touches {space.name} of rank {rank} at chunks {place} to {place + n - 1}, but "
                f"{self.collective.name} gives it "
                + (f"{has.start} to {has.stop - 1}" if has else "none")
            )
        return (INPUT if reads_input else OUTPUT, index)

    def slot(self, o: Operand, n: int, written: bool) -> tuple[int, int]:
        if not 0 <= o.edge < len(self.ends):
            raise self.fail(f"names edge {o.edge} of {len(self.ends)}")
        edge = self.program.edges[o.edge]
        index, thread = self.ends[o.edge]
        if edge.kind != EdgeKind.DATA or thread != self.thread:
            raise self.fail(f"has no slot on this edge ({_name(edge)})")
        if (edge.direction == Direction.SEND) != written:
            raise self.fail("reads a slot that it sends, or writes one that it receives")
        if o.place != 0:
            raise self.fail(f"a slot at place {o.place}, want 0")
        self.widest = max(self.widest, n)
        return (MESSAGE, index)

    def scratch(self, place: int, n: int) -> tuple[int, int]:
        if place < 0 or place + n > self.program.nscratch:
            raise self.fail(f"scratch places {place} to {place + n - 1} of {self.program.nscratch}")
        for p in range(place, place + n):
            if self.scratch_owners.setdefault(p, self.channel) != self.channel:
                raise self.fail(
                    f"scratch place {p} is also used by channel {self.scratch_owners[p]}"
                )
        return (SCRATCH, self.program.rank * self.network.stride + self.network.nchunks + place)
