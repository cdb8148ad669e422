"""Run a Schedule on symbols: which chunk scratch holds, when a value is whole, how deep it is.

A place holds (chunk, contributions as bits, depth); depth counts the messages on the longest
chain that the value depends on. Where all blocks are equally long any place may hold any chunk;
which one is then left open. Messages are never lost or bounded here: what finite slots do
is the verifier's matter.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

from pycoll.errors import DeadlockError, ScheduleError
from pycoll.schedule.chunk import Buffer, Chunks
from pycoll.schedule.order import Access, cross_channel
from pycoll.schedule.schedule import EdgeKey, Schedule
from pycoll.schedule.step import Kind, Step, places


class Value(NamedTuple):
    """What a place holds."""

    chunk: int
    contributions: int  #: bit r: rank r's own
    depth: int


@dataclass(frozen=True)
class Evaluation:
    """What running a schedule has shown."""

    #: the schedule with the chunk of every place of scratch filled in
    resolved: Schedule
    #: per rank, indices of the steps whose fold first holds the contributions of all ranks
    completes: tuple[frozenset[int], ...]
    #: messages on the longest chain
    depth: int
    #: the first step that completes only some of its chunks; an average cannot say so
    mixed: str = ""


def evaluate(schedule: Schedule) -> Evaluation:
    """Run all ranks; DeadlockError says who waits for whom if they do not finish."""
    return _Evaluator(schedule).run()


class _Evaluator:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.full = (1 << schedule.size) - 1
        self.equal = schedule.collective.equal_blocks
        self.inputs = [_input(schedule, rank) for rank in range(schedule.size)]
        # In place the output holds the input at first.
        self.held: list[dict[int, Value]] = [
            dict(given) if schedule.collective.in_place else {} for given in self.inputs
        ]
        self.fifo: dict[EdgeKey, deque[tuple[Value, ...]]] = defaultdict(deque)
        self.resolved = [list(steps) for steps in schedule.ranks]
        self.completes: list[set[int]] = [set() for _ in schedule.ranks]
        self.done: list[list[bool]] = [[False] * len(steps) for steps in schedule.ranks]
        in_place = schedule.collective.in_place
        self.after = [cross_channel(accesses(steps, in_place)) for steps in schedule.ranks]
        self.depth = 0
        self.mixed = ""

    def run(self) -> Evaluation:
        s = self.schedule
        streams: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        for rank, steps in enumerate(s.ranks):
            for i, step in enumerate(steps):
                streams[rank, step.channel].append(i)
        progress = True
        while progress:
            progress = False
            for (rank, _), stream in streams.items():
                while stream and self._ready(rank, stream[0]):
                    self._execute(rank, stream.popleft())
                    progress = True
        stuck = [(rank, stream[0]) for (rank, _), stream in streams.items() if stream]
        if stuck:
            lines = [f"rank {rank} at step {i}: {s.ranks[rank][i]}" for rank, i in stuck]
            raise DeadlockError(f"{s.name}: no rank can go on; " + "; ".join(lines))
        resolved = s
        if s.nscratch:
            ranks = tuple(tuple(steps) for steps in self.resolved)
            resolved = Schedule(s.name, s.collective, s.size, s.nchunks, s.nscratch, ranks)
        return Evaluation(
            resolved, tuple(frozenset(c) for c in self.completes), self.depth, self.mixed
        )

    def _ready(self, rank: int, i: int) -> bool:
        step = self.schedule.ranks[rank][i]
        if not all(self.done[rank][j] for j in self.after[rank][i]):
            return False
        return all(self.fifo[p, rank, step.channel] for p in step.senders(rank))

    def _execute(self, rank: int, i: int) -> None:
        step = self.schedule.ranks[rank][i]
        self.done[rank][i] = True
        if step.kind is Kind.SEND:
            read = self._read(rank, step.chunks)
            message = tuple(v._replace(depth=v.depth + 1) for v in read)
            self.depth = max(self.depth, *(v.depth for v in message))
            self.fifo[rank, step.peers[0], step.channel].append(message)
            self.resolved[rank][i] = step._replace(chunks=self._resolve(step.chunks, message))
            return
        operands = []
        if step.kind is Kind.COPY or step.kind is Kind.REDUCE:
            assert step.source is not None
            operands.append(self._read(rank, step.source))
            step = step._replace(source=self._resolve(step.source, operands[0]))
            if step.kind is Kind.REDUCE:
                operands.insert(0, self._read(rank, step.chunks))
        for peer in step.peers:
            own = peer == rank
            edge = (peer, rank, step.channel)
            operands.append(self._read(rank, step.chunks) if own else self.fifo[edge].popleft())
        self._write(rank, i, step, operands)

    def _write(self, rank: int, i: int, step: Step, operands: list[tuple[Value, ...]]) -> None:
        where = f"{self.schedule.name}: rank {rank} step {i}: {step}"
        whole = []
        for place, *values in zip(places(step.chunks), *operands, strict=True):
            chunks = {v.chunk for v in values}
            if step.chunks.buffer is Buffer.OUTPUT:
                chunks.add(place)
            if len(chunks) != 1 and not self.equal:
                raise ScheduleError(f"{where}: mixes chunks {sorted(chunks)}")
            contributions = 0
            for v in values:
                contributions |= v.contributions
            depth = max(v.depth for v in values)
            self.held[rank][place] = Value(values[0].chunk, contributions, depth)
            whole.append(
                contributions == self.full and all(v.contributions != self.full for v in values)
            )
        if any(whole):
            if not all(whole):
                self.mixed = self.mixed or (
                    f"{where}: completes some chunks and not others; an average needs one fold "
                    "for each"
                )
            self.completes[rank].add(i)
        held = self._read(rank, step.chunks)
        self.resolved[rank][i] = step._replace(chunks=self._resolve(step.chunks, held))

    def _read(self, rank: int, chunks: Chunks) -> tuple[Value, ...]:
        apart = chunks.buffer is Buffer.INPUT and not self.schedule.collective.in_place
        held = self.inputs[rank] if apart else self.held[rank]
        try:
            return tuple(held[p] for p in places(chunks))
        except KeyError:
            raise ScheduleError(
                f"{self.schedule.name}: rank {rank} reads {chunks}, which nothing has written"
            ) from None

    def _resolve(self, chunks: Chunks, values: tuple[Value, ...]) -> Chunks:
        if chunks.buffer is not Buffer.SCRATCH:
            return chunks
        if self.equal:
            return first_chunks(chunks, self.schedule.nchunks)
        first = values[0].chunk
        if [v.chunk for v in values] != list(range(first, first + len(values))):
            held = [v.chunk for v in values]
            raise ScheduleError(f"{chunks} holds chunks {held}; a range must hold adjacent ones")
        return chunks._replace(chunk=first)


def first_chunks(chunks: Chunks, nchunks: int) -> Chunks:
    """Return places of scratch as those of the first chunks, where all blocks are equally long.

    A chunk says how long a value is, so any that is as long will do.
    """
    if chunks.buffer is not Buffer.SCRATCH:
        return chunks
    if chunks.nchunks > nchunks:
        raise ScheduleError(f"{chunks}: {chunks.nchunks} chunks, want at most {nchunks}")
    return chunks._replace(chunk=0)


def _input(s: Schedule, rank: int) -> dict[int, Value]:
    """Return what the input of a rank holds, by place."""
    blocks = s.collective.nblocks(s.size)
    parts, given = s.nchunks // blocks, {}
    for block in s.collective.in_blocks(rank, s.size):
        ranks = s.collective.before(rank, block, s.size)
        assert ranks is not None
        bits = sum(1 << r for r in ranks)
        for chunk in range(block * parts, (block + 1) * parts):
            given[chunk] = Value(chunk, bits, 0)
    return given


def accesses(steps: tuple[Step, ...], in_place: bool) -> list[Access]:
    """Return what every step touches, for ``cross_channel``.

    Where input and output are never one memory nothing writes what a read of the input reads.
    """
    return [
        Access(
            step.channel,
            [p for c in step.reads() if in_place or c.buffer != Buffer.INPUT for p in places(c)],
            [p for c in step.writes() for p in places(c)],
        )
        for step in steps
    ]
