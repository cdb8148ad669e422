"""Decide by running whether Programs are right: the judge of mutants, independent of the verifier.

Programs run on real slots and memory that start poisoned, one access of one chunk at a time,
under adversarial random schedules, with one, two and several tiles, each rank in place or not
by chance. Values are pairs (sum, hash of the expression), both modulo a prime: the first tells
a wrong multiset, the second a different tree. Nothing here knows of clocks or symbols.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pycoll.program.isa import Direction, EdgeKind, Flag, Op, Space
from pycoll.program.program import Edge, Operand, Program
from pycoll.schedule import Collective, allreduce

PRIME = (1 << 61) - 1
Value = tuple[int, int]
Place = tuple[str, int, int, int]  #: buffer, rank, place, tile


class WrongRunError(Exception):
    """A run that ended with a wrong result, did not end, or touched what it must not."""


def add(a: Value, b: Value) -> Value:
    low, high = sorted((a[1], b[1]))
    return (a[0] + b[0]) % PRIME, hash((low, high)) % PRIME


def divide(a: Value) -> Value:
    # Not linear, so that dividing the parts is not dividing the sum.
    return (a[0] * a[0] + 12345) % PRIME, hash(("divided", a[1])) % PRIME


class Run:
    """One run of all ranks with one seed."""

    def __init__(
        self,
        programs: Sequence[Program],
        collective: Collective,
        slots: int,
        tiles: int,
        average: bool,
        seed: int,
    ) -> None:
        self.random = random.Random(seed)
        self.programs, self.slots, self.tiles, self.average = programs, slots, tiles, average
        self.collective = collective
        self.size, self.nchunks = len(programs), programs[0].nchunks
        self.in_place = [collective.in_place and self.random.random() < 0.5 for _ in programs]
        self.has = {
            buffer: [extent(rank, self.size, self.nchunks) for rank in range(self.size)]
            for buffer, extent in (("IN", collective.in_extent), ("OUT", collective.out_extent))
        }
        self.empty_last = tiles > 1 and self.random.random() < 0.3
        self.memory: dict[Place, Value] = {}
        self.slot: dict[tuple[object, int, int], Value] = {}
        self.filled: dict[object, int] = defaultdict(int)
        self.consumed: dict[object, int] = defaultdict(int)
        self.asked: dict[object, int] = defaultdict(int)
        self.awaited: dict[object, int] = defaultdict(int)
        self.running = [len(p.channel_starts) for p in programs]
        self.tag = {
            (rank, chunk, tile): (self.random.randrange(PRIME), self.random.randrange(PRIME))
            for rank in range(self.size)
            for chunk in self.has["IN"][rank]
            for tile in range(tiles)
        }
        for (rank, chunk, tile), value in self.tag.items():
            self.memory[self.place("IN", rank, chunk, tile)] = value
        self.results: dict[tuple[int, int, int], Value] = {}

    def place(self, buffer: str, rank: int, place: int, tile: int) -> Place:
        if buffer == "IN" and self.in_place[rank]:
            buffer = "OUT"
        return buffer, rank, place, tile

    def poison(self) -> Value:
        return self.random.randrange(PRIME), self.random.randrange(PRIME)

    def run(self) -> None:
        """Step random threads until all end; then check results and edges."""
        threads = {
            (p.rank, c): self.thread(p, c)
            for p in self.programs
            for c in range(len(p.channel_starts))
        }
        # Priorities that change now and then find orderings that fair dice hardly ever do.
        fair = self.random.random() < 0.4
        priority = {t: self.random.random() for t in threads}
        blocked: set[tuple[int, int]] = set()
        while threads:
            able = [t for t in threads if t not in blocked]
            if not able:
                raise WrongRunError(f"deadlock: {sorted(threads)}")
            chosen = self.random.choice(able) if fair else max(able, key=priority.__getitem__)
            if not fair and self.random.random() < 0.02:
                priority[chosen] = self.random.random() - 1
            moved = next(threads[chosen], None)
            if moved is None:
                del threads[chosen]
                self.leave(chosen[0])
                blocked.clear()
            elif moved:
                blocked.clear()
            else:
                blocked.add(chosen)
        for key in {*self.filled, *self.awaited, *self.asked, *self.consumed}:
            counts = {self.filled[key], self.awaited[key]}
            if key[0] == EdgeKind.DATA:  # type: ignore[index]
                counts |= {self.asked[key], self.consumed[key]}
            if len(counts) > 1:
                raise WrongRunError(f"edge {key} is not level")
        self.check()

    def leave(self, rank: int) -> None:
        """When the last channel ends the call returns: the caller reads and reuses the memory."""
        self.running[rank] -= 1
        if self.running[rank] == 0:
            for chunk in self.has["OUT"][rank]:
                for tile in range(self.tiles):
                    at = self.place("OUT", rank, chunk, tile)
                    self.results[rank, chunk, tile] = self.memory.get(at, self.poison())

    def check(self) -> None:
        c, parts = self.collective, self.nchunks // self.collective.nblocks(self.size)
        for rank, chunk, tile in self.results:
            if tile >= self.tiles - self.empty_last:
                continue
            block, part = divmod(chunk, parts)
            ranks = c.after(rank, block, self.size)
            assert ranks is not None
            origin = c.origin(rank, block, self.size) * parts + part
            want = sum(self.tag[r, origin, tile][0] for r in ranks) % PRIME
            if self.average and self.size > 1:
                want = divide((want, 0))[0]
            got = self.results[rank, chunk, tile]
            if got[0] != want:
                raise WrongRunError(f"chunk {chunk} of tile {tile} of rank {rank} is wrong")
            if c.same_bits and got != self.results[0, chunk, tile]:
                raise WrongRunError(f"chunk {chunk} of tile {tile}: bits differ")

    def thread(self, program: Program, channel: int) -> Iterator[bool]:
        """Yield after each access: True if something was done, False while waiting."""
        pc, tile = program.channel_starts[channel], 0
        scratch: dict[int, Value] = {}
        while True:
            i = program.instructions[pc]
            if i.op == Op.END:
                return
            if i.op == Op.END_LOOP:
                tile += 1
                scratch = {}
                if tile < self.tiles:
                    pc = i.target
            elif i.op == Op.WAIT:
                edge = program.edges[i.edge]
                while not self.may_pass(program.rank, edge):
                    yield False
            elif i.op == Op.SIGNAL:
                edge = program.edges[i.edge]
                sends = edge.direction == Direction.SEND
                (self.filled if sends else self.consumed)[self.key(program.rank, edge)] += 1
            elif i.op == Op.REDUCE_COPY and not (self.empty_last and tile == self.tiles - 1):
                for k in range(i.sources[0].nchunks):
                    total: Value | None = None
                    for source in i.sources:
                        value = self.read(program, source, k, tile, scratch)
                        total = value if total is None else add(total, value)
                        yield True
                    assert total is not None
                    if i.flags & Flag.SCALE and self.size > 1:
                        total = divide(total)
                    for destination in i.destinations:
                        self.write(program, destination, k, tile, scratch, total)
                        yield True
            pc += 1
            yield True

    def key(self, rank: int, edge: Edge) -> tuple[int, int, int, int, int]:
        ends = (rank, edge.peer) if edge.direction == Direction.SEND else (edge.peer, rank)
        return edge.kind, *ends, edge.channel, edge.other

    def may_pass(self, rank: int, edge: Edge) -> bool:
        key = self.key(rank, edge)
        if edge.direction == Direction.RECV:
            if self.awaited[key] >= self.filled[key]:
                return False
            self.awaited[key] += 1
        elif edge.kind == EdgeKind.DATA:
            if self.asked[key] >= self.consumed[key] + self.slots:
                return False
            self.asked[key] += 1
        return True

    def where(self, program: Program, o: Operand, k: int, tile: int) -> Place:
        peer = o.space in (Space.PEER_IN, Space.PEER_OUT)
        rank = o.edge if peer else program.rank
        if peer and self.running[rank] == 0:
            raise WrongRunError(f"rank {program.rank} touches rank {rank}, which has returned")
        buffer = "IN" if o.space in (Space.IN, Space.PEER_IN) else "OUT"
        if o.place + k not in self.has[buffer][rank]:
            raise WrongRunError(f"rank {rank} has no chunk {o.place + k} of {buffer}")
        return self.place(buffer, rank, o.place + k, tile)

    def slot_of(self, program: Program, o: Operand, k: int) -> tuple[object, int, int]:
        edge = program.edges[o.edge]
        key = self.key(program.rank, edge)
        count = self.filled if edge.direction == Direction.SEND else self.consumed
        return key, count[key] % self.slots, k

    def read(
        self, program: Program, o: Operand, k: int, tile: int, scratch: dict[int, Value]
    ) -> Value:
        if o.space == Space.SCRATCH:
            return scratch.get(o.place + k) or self.poison()
        if o.space == Space.SLOT:
            return self.slot.get(self.slot_of(program, o, k)) or self.poison()
        return self.memory.get(self.where(program, o, k, tile)) or self.poison()

    def write(
        self,
        program: Program,
        o: Operand,
        k: int,
        tile: int,
        scratch: dict[int, Value],
        value: Value,
    ) -> None:
        if o.space == Space.SCRATCH:
            scratch[o.place + k] = value
        elif o.space == Space.SLOT:
            self.slot[self.slot_of(program, o, k)] = value
        else:
            self.memory[self.where(program, o, k, tile)] = value


def wrong(
    programs: Sequence[Program],
    collective: Collective = allreduce,
    *,
    slots: int = 2,
    average: bool = False,
    runs: int = 24,
) -> str:
    """Return what went wrong in one of ``runs`` runs, or "" if all were right."""
    for seed in range(runs):
        tiles = (1, 2, slots + 2)[seed % 3]
        try:
            Run(programs, collective, slots, tiles, average, seed).run()
        except WrongRunError as error:
            return str(error)
    return ""
