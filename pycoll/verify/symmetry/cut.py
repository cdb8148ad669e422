"""Programs that differ from g·P only in how ranges are cut, and in what each rank does by itself.

Where a range of chunks wraps round the end, a rank sends two messages for the one of its
representative; and lowering may send the second piece with the move that makes it, which for the
whole range it cannot. What stands in scratch for a part of OUT may lie there in another order. Such
a rank's Program is still g·P in what its peers and its caller see:

- *The same messages and results.* It is run by itself, with every message that comes in as a
  symbol, and so is P. What goes out on every edge, and what is left in OUT, must be the same trees
  of the same symbols, up to g, where each message of g·P is cut at the ends of its runs of chunks
  and nowhere else. Sender and receiver see the same chunks, in the same order where the group keeps
  it (the network of representatives is then run with values that do) and else ascending; so they
  cut alike. As every rank then makes of what it hears what g·P makes of it, the whole network
  computes the same.

- *No rank waits for ever.* P is run in *blocks*: all waits, then moves, then all signals
  (`grouped`). A rank's Program must have taken and sent all pieces of one block before it waits for
  any of the next. So when P can take a block, its rank can: what it hears is all there, and if a
  message is cut into two pieces at most, and P is proved with half of the slots, so is the room for
  all it sends, in whatever order it does so. One run in which all ranks end decides for all.

- *The rest* (bounds, WAIT and SIGNAL in pairs, nothing read that was not written, IN read after OUT
  was written there) a rank's Program is checked for as it is run. It has one channel, so that
  accesses are in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pycoll.errors import ScheduleError
from pycoll.program.isa import Direction, EdgeKind, Op, Space
from pycoll.program.program import Edge, Instruction, Program
from pycoll.schedule import Collective
from pycoll.verify.network import (
    AWAIT_MESSAGE,
    AWAIT_SLOT,
    BEGIN,
    CONSUME,
    FILL,
    FOLD,
    INPUT,
    MESSAGE,
    STOP,
    Network,
    Step,
    alone,
)
from pycoll.verify.symmetry.canonical import NotSymmetricError
from pycoll.verify.symmetry.group import Group

PIECES = 2  #: of a message at most; slots are proved for so many times fewer


def grouped(program: Program) -> Program:
    """Return the program in blocks; a block takes with it the sends of what it has made.

    A block has all its waits before all its moves and these before all its signals, and no edge
    twice. Each edge carries the same messages in the same order as before.
    """
    body = [i for i in program.instructions if i.op not in (Op.LOOP, Op.END_LOOP, Op.END)]
    code = [Instruction(Op.LOOP, target=len(body) + 1)]
    for block in _merged(program, [*_blocks(body)]):
        for ops in ((Op.WAIT,), (Op.REDUCE_COPY,), (Op.SIGNAL,)):
            code += [i for i in block if i.op in ops]
    code += [Instruction(Op.END_LOOP, target=0), Instruction(Op.END)]
    return replace(program, instructions=tuple(code))


def _blocks(body: list[Instruction]) -> Iterator[list[Instruction]]:
    block: list[Instruction] = []
    for i in body:
        if i.op != Op.SIGNAL and any(b.op == Op.SIGNAL for b in block):
            yield block
            block = []
        block.append(i)
    if block:
        yield block


def _merged(program: Program, blocks: list[list[Instruction]]) -> list[list[Instruction]]:
    result: list[list[Instruction]] = []
    for block in blocks:
        mine = {i.edge for i in block if i.op != Op.REDUCE_COPY}
        sends = all(program.edges[e].direction == Direction.SEND for e in mine) and all(
            o.space == Space.SLOT for i in block for o in i.destinations
        )
        taken = {i.edge for i in result[-1] if i.op != Op.REDUCE_COPY} if result else mine
        if sends and taken.isdisjoint(mine):
            result[-1] = result[-1] + block
        else:
            result.append(block)
    return result


def has_blocks(program: Program) -> bool:
    """Tell whether a program can be looked at in blocks: one channel, staged, in one loop."""
    ops = [i.op for i in program.instructions]
    return (
        program.channel_starts == (0,)
        and ops[:1] == [Op.LOOP]
        and ops[-2:] == [Op.END_LOOP, Op.END]
        and all(e.kind == EdgeKind.DATA for e in program.edges)
        and all(
            0 <= i.edge < len(program.edges)
            for i in program.instructions
            if i.op in (Op.WAIT, Op.SIGNAL)
        )
    )


def is_cut(program: Program, base: Program, collective: Collective, group: Group) -> bool:
    """Tell whether ``program`` is g·base but for cuts and stores left out, in the blocks of base.

    ``base`` is a representative's Program that has been proved with half of the slots.
    """
    if group.equal_blocks or not (has_blocks(program) and has_blocks(base)):
        return False
    if group.element(base.rank) or group.rank(group.element(program.rank), base.rank) != (
        program.rank
    ):
        return False
    try:
        symbols: dict[tuple[object, ...], int] = {}
        whole = _Alone(base, base, collective, group, symbols)
        whole.run()
        mine = _Alone(program, base, collective, group, symbols, whole)
        mine.run()
        mine.compare(whole)
    except ScheduleError:
        return False
    return True


Piece = tuple[int, list[int]]  #: first chunk, value of each
EdgeName = Edge  #: with the peer that the representative has


@dataclass
class _Traffic:
    """Messages of one edge: those of the representative, or their pieces."""

    pieces: list[Piece] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  #: in which each is taken or sent


class _Alone:
    """One rank's Program run by itself through one tile, everything named as by its representative.

    Without ``whole`` it takes what it reads for what it is sent, and notes its blocks. With the run
    of the representative it is held to the pieces of that run's messages, and to its blocks.
    """

    def __init__(
        self,
        program: Program,
        base: Program,
        collective: Collective,
        group: Group,
        symbols: dict[tuple[object, ...], int],
        whole: _Alone | None = None,
    ) -> None:
        self.group = group
        self.g = group.element(program.rank)
        self.back = group.inverse(self.g)
        self.symbols = symbols
        self.names = [e._replace(peer=group.rank(self.back, e.peer)) for e in program.edges]
        if len(set(self.names)) != len(self.names) or (
            whole is not None and set(self.names) != set(whole.names)
        ):
            raise NotSymmetricError(f"program {program.rank}: its edges are not its class's")
        self.network: Network = alone(program, base, collective, group)
        self.rank = program.rank
        self.memory: dict[int, tuple[int, int]] = {}  # index -> chunk, value
        self.asked = [0] * len(self.names)  # slots; awaited messages
        self.done = [0] * len(self.names)  # filled; consumed
        self.pending: list[Piece | None] = [None] * len(self.names)
        self.traffic: dict[EdgeName, _Traffic] = defaultdict(_Traffic)
        self.block = 0
        self.moves_on = False  # a wait begins the next block
        self.expected = None if whole is None else {n: self._cut(n, whole) for n in self.names}
        self.left: dict[int, int] = defaultdict(int)  # pieces of each block that are to come
        for traffic in (self.expected or {}).values():
            for block in traffic.blocks:
                self.left[block] += 1
        self._next_block()

    def _cut(self, name: EdgeName, whole: _Alone) -> _Traffic:
        """Return the pieces of an edge's messages, in this rank's chunks."""
        result, messages = _Traffic(), whole.traffic[name]
        for (first, values), block in zip(messages.pieces, messages.blocks, strict=True):
            pieces: list[Piece] = []
            held = [(self.group.chunk(self.g, first + k), v) for k, v in enumerate(values)]
            for chunk, value in held if self.group.keeps_order else sorted(held):
                if pieces and pieces[-1][0] + len(pieces[-1][1]) == chunk:
                    pieces[-1][1].append(value)
                else:
                    pieces.append((chunk, [value]))
            if len(pieces) > PIECES:
                raise NotSymmetricError(f"program {self.rank}: a message in {len(pieces)} pieces")
            result.pieces += pieces
            result.blocks += [block] * len(pieces)
        return result

    def _next_block(self) -> None:
        if self.expected is not None:
            while self.left and not self.left.get(self.block):
                self.left.pop(self.block, None)
                self.block += 1

    def _wrong(self, text: str) -> NotSymmetricError:
        return NotSymmetricError(f"program {self.rank}: {text}")

    def run(self) -> None:
        """Run one tile; NotSymmetricError or another ScheduleError says what is wrong."""
        code = self.network.threads[0].code
        if code[0][0] != BEGIN:
            raise self._wrong("no loop")
        for step in code:
            kind = step[0]
            if kind == FOLD:
                self._fold(step)
            elif kind in (AWAIT_MESSAGE, AWAIT_SLOT):
                self._await(step[1])
            elif kind in (FILL, CONSUME):
                self._signal(kind, step[1])
            elif kind == STOP:
                break
        if self.asked != self.done:
            raise self._wrong("a slot that is taken is not filled or not given back")

    def _await(self, edge: int) -> None:
        number, expected = self.asked[edge], self.expected
        if number != self.done[edge]:
            raise self._wrong("waits twice")
        if expected is None:
            if self.moves_on:
                self.block, self.moves_on = self.block + 1, False
        else:
            blocks = expected[self.names[edge]].blocks
            if number >= len(blocks) or blocks[number] != self.block:
                raise self._wrong("waits for more than its block holds")
        self.asked[edge] = number + 1

    def _signal(self, kind: int, edge: int) -> None:
        if self.asked[edge] != self.done[edge] + 1:
            raise self._wrong("a signal without a wait")
        traffic = self.traffic[self.names[edge]]
        if kind == FILL:
            piece = self.pending[edge]
            if piece is None:
                raise self._wrong("signals a slot that was never filled")
            traffic.pieces.append(piece)
            self.pending[edge] = None
        elif len(traffic.pieces) == self.done[edge]:
            raise self._wrong("consumes what it has not read")
        traffic.blocks.append(self.block)
        self.done[edge] += 1
        self.moves_on = True
        if self.expected is not None:
            self.left[self.block] -= 1
            self._next_block()

    def _symbol(self, *key: object) -> int:
        return self.symbols.setdefault(key, len(self.symbols))

    def _fold(self, step: Step) -> None:
        _, n, chunk, sources, destinations, scale = step
        total: list[int] | None = None
        for kind, index in sources:
            got = self._read(kind, index, chunk, n)
            if total is None:
                total = got
            else:
                total = [
                    self._symbol(*((a, b) if a < b else (b, a)))
                    for a, b in zip(total, got, strict=True)
                ]
        assert total is not None
        if scale:
            total = [self._symbol(v) for v in total]
        for kind, index in destinations:
            if kind == MESSAGE:
                if self.asked[index] != self.done[index] + 1:
                    raise self._wrong("writes a slot that may be in use")
                self.pending[index] = chunk, total
            else:
                self.memory.update((index + k, (chunk + k, v)) for k, v in enumerate(total))

    def _read(self, kind: int, index: int, chunk: int, n: int) -> list[int]:
        if kind == MESSAGE:
            return self._message(index, chunk, n)
        held = [self.memory.get(index + k) for k in range(n)]
        if kind == INPUT:
            back, group = self.back, self.group
            own = [self._symbol("input", group.chunk(back, chunk + k)) for k in range(n)]
            if self.network.in_place and any(
                h is not None and h[1] != o for h, o in zip(held, own, strict=True)
            ):
                raise self._wrong("reads the input after the output was written there")
            return own
        values = [h[1] for k, h in enumerate(held) if h is not None and h[0] == chunk + k]
        if len(values) != n:
            raise self._wrong("reads what was never written, or another chunk")
        return values

    def _message(self, edge: int, chunk: int, n: int) -> list[int]:
        number, name = self.done[edge], self.names[edge]
        if self.asked[edge] != number + 1:
            raise self._wrong("reads a slot that may not be filled yet")
        pieces = self.traffic[name].pieces
        if len(pieces) == number:  # the first read of this message
            if self.expected is None:
                values = [self._symbol("message", name, number, chunk + k) for k in range(n)]
                pieces.append((chunk, values))
            else:
                pieces.append(self.expected[name].pieces[number])
        first, values = pieces[number]
        if first != chunk or len(values) != n:
            raise self._wrong("reads other chunks than it is sent")
        return values

    def compare(self, whole: _Alone) -> None:
        """Raise NotSymmetricError unless all messages and results are those of ``whole``."""
        assert self.expected is not None
        if any(self.traffic[name] != self.expected[name] for name in self.names):
            raise self._wrong("its messages are not its class's")
        mine, theirs = self.network, whole.network
        for chunk in theirs.kept[whole.rank]:
            there = self.group.chunk(self.g, chunk)
            held = self.memory.get(self.rank * mine.stride + there)
            wanted = whole.memory.get(whole.rank * theirs.stride + chunk)
            if held is None or wanted is None or held[1] != wanted[1]:
                raise self._wrong(f"ends with another value of chunk {there}")
