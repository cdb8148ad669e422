"""Symbolic execution of a network on one maximal run.

Each count has one signaller and control flow never depends on data, so the run is one of a
deterministic dataflow network: whatever the interleaving, the same instructions run, and once
every conflicting pair of accesses is ordered they see the same values. One maximal run therefore
decides for all.

A free slot orders slots only: that memory elsewhere may be used again is never concluded from
credit. So what is proved with n slots per edge holds with more, as more slots cannot make a
dataflow network deadlock.
"""

from __future__ import annotations

from collections.abc import Callable

from pycoll.errors import PostconditionError, RaceError, ScheduleError
from pycoll.verify.finding import At, finding
from pycoll.verify.network import (
    AGAIN,
    AWAIT_COUNT,
    AWAIT_MESSAGE,
    AWAIT_SLOT,
    CONSUME,
    FILL,
    FOLD,
    INPUT,
    MESSAGE,
    RAISE,
    SCRATCH,
    STOP,
    Network,
    Step,
)
from pycoll.verify.order import Order, Release
from pycoll.verify.symmetry.values import SymmetricValues
from pycoll.verify.values import Values, WrongValueError

#: Told where several operands are folded, and the values that come of it.
OnFold = Callable[[At, list[int]], None]


class SymbolicRun:
    """One run of every thread through ``tiles`` tiles.

    With ``empty_last`` the last tile is behind the end of every chunk: its instructions move no
    data, and still wait and signal. A partial tile runs as a full one, since no instruction
    depends on the number of bytes.
    """

    def __init__(
        self,
        network: Network,
        values: Values | SymmetricValues,
        *,
        slots: int,
        tiles: int,
        empty_last: bool = False,
        on_fold: OnFold | None = None,
    ) -> None:
        self.network = network
        self.values = values
        self.slots = slots
        self.on_fold = on_fold
        self.tiles = tiles
        self.full_tiles = tiles - empty_last
        self.tile_stride = network.held * network.stride
        self.memory = [0] * (self.tile_stride * self.full_tiles)
        self.inputs = values.inputs(network.stride)
        threads, edges = len(network.threads), len(network.edges)
        self.steps = [0] * threads  # where each thread stands
        self.offsets = [0] * threads  # its tile, times tile_stride
        self.ended = [False] * threads
        # Counts of each edge: what the source asked for and filled (a plain count: raised),
        # what the target awaited and consumed.
        self.asked = [0] * edges
        self.filled = [0] * edges
        self.awaited = [0] * edges
        self.consumed = [0] * edges
        self.source_sleeps = [False] * edges
        self.target_sleeps = [False] * edges
        # Values in the slot to be filled next, and in all those that were filled.
        self.pending: list[list[int] | None] = [None] * edges
        self.messages: list[list[list[int] | None]] = [[] for _ in range(edges)]
        self.order = Order(network) if network.shared else None
        self.fills: list[list[Release]] = [[] for _ in range(edges)]

    def complete(self) -> None:
        """Run until no thread can go on; raise what is wrong on the way."""
        # Taken from the end, so rank 0 runs first; a finding is the same every time.
        ready = list(range(len(self.network.threads) - 1, -1, -1))
        while ready:
            self._run_thread(ready.pop(), ready)

    def _run_thread(self, thread: int, ready: list[int]) -> None:
        """Run one thread until it waits or ends, adding to ``ready`` the threads it wakes."""
        code, end = self.network.threads[thread].code, len(self.memory)
        offset, at = self.offsets[thread], self.steps[thread]
        while True:
            step = code[at]
            kind = step[0]
            if kind == FOLD:
                if offset < end:
                    self._fold(thread, at, step, offset)
            elif kind in (AWAIT_MESSAGE, AWAIT_COUNT):
                if not self._take(thread, at, kind, step[1]):
                    break
            elif kind == AWAIT_SLOT:
                if not self._reserve(thread, at, step[1]):
                    break
            elif kind in (FILL, RAISE):
                self._signal(thread, at, kind, step[1], ready)
            elif kind == CONSUME:
                self._consume(thread, at, step[1], ready)
            elif kind == AGAIN:
                offset += self.tile_stride
                if offset < self.tile_stride * self.tiles:
                    at = step[1]
                    continue
            elif kind == STOP:
                self.ended[thread] = True
                break
            at += 1
        self.offsets[thread], self.steps[thread] = offset, at

    def _take(self, thread: int, at: int, kind: int, edge: int) -> bool:
        """Take the next message, or the next signal of a plain count; False: not there yet."""
        number = self.awaited[edge]
        if kind == AWAIT_MESSAGE and number > self.consumed[edge]:
            text = "waits for a message before it has consumed the last one"
            raise self._wrong(thread, at, text, kind=ScheduleError)
        if number >= self.filled[edge]:
            self.target_sleeps[edge] = True
            return False
        if self.order is not None:
            twist = self.network.edges[edge].twist
            self.order.acquire(thread, self.fills[edge][number], twist)
        self.awaited[edge] = number + 1
        return True

    def _reserve(self, thread: int, at: int, edge: int) -> bool:
        """Ask for the next slot; False: it is not free yet."""
        number = self.asked[edge]
        if number > self.filled[edge]:
            text = "waits for a slot before it has filled the last one"
            raise self._wrong(thread, at, text, kind=ScheduleError)
        if number >= self.consumed[edge] + self.slots:
            self.source_sleeps[edge] = True
            return False
        self.asked[edge] = number + 1
        return True

    def _signal(self, thread: int, at: int, kind: int, edge: int, ready: list[int]) -> None:
        """Say that a message is in its slot, or raise a plain count."""
        if kind == FILL:
            if self.asked[edge] <= self.filled[edge]:
                raise self._unpaired(thread, at, edge, "fills a slot that may be in use")
            self.messages[edge].append(self.pending[edge])
            self.pending[edge] = None
        if self.order is not None:
            self.fills[edge].append(self.order.release(thread))
        self.filled[edge] += 1
        if self.target_sleeps[edge]:
            self.target_sleeps[edge] = False
            ready.append(self.network.edges[edge].target)

    def _consume(self, thread: int, at: int, edge: int, ready: list[int]) -> None:
        """Give a slot back."""
        if self.awaited[edge] <= self.consumed[edge]:
            raise self._unpaired(thread, at, edge, "consumes what may not be there")
        self.consumed[edge] += 1
        if self.source_sleeps[edge]:
            self.source_sleeps[edge] = False
            ready.append(self.network.edges[edge].source)

    def _fold(self, thread: int, at: int, step: Step, offset: int) -> None:
        """Run one REDUCE_COPY; a range of chunks is a list of values."""
        _, n, chunk, sources, destinations, scale = step
        memory, values, in_place = self.memory, self.values, self.network.in_place
        if self.order is not None:
            self.order.access(thread, at, step, offset)
        total: list[int] | None = None
        folds = values.folds
        for kind, index in sources:
            if kind == MESSAGE:
                got = self._message(thread, at, index, chunk, n)
            elif kind == INPUT:
                got = self.inputs[index : index + n]
                present = memory[index + offset : index + offset + n] if in_place else ()
                if any(present) and any(p not in (0, g) for p, g in zip(present, got, strict=True)):
                    place = self.network.place(index)
                    raise self._wrong(
                        thread,
                        at,
                        f"reads the input at {place} after the output was written there; "
                        "in place they are one memory",
                        chunk,
                        RaceError,
                    )
            else:
                got = memory[index + offset : index + offset + n]
            if kind != MESSAGE:
                if 0 in got:
                    place = self.network.place(index + got.index(0))
                    raise self._wrong(thread, at, f"reads {place}, which was never written", chunk)
                if kind == SCRATCH and not self.network.equal_blocks:
                    held = [values.chunk(v) for v in got]
                    if held != [*range(chunk, chunk + n)]:
                        text = f"reads chunk {chunk} at {self.network.place(index)}, which holds"
                        raise self._wrong(thread, at, f"{text} chunk {held[0]}", chunk)
            if total is None:
                total = got
            else:
                try:
                    total = [
                        folds.get((a, b) if a < b else (b, a)) or values.fold(a, b)
                        for a, b in zip(total, got, strict=True)
                    ]
                except WrongValueError as wrong:
                    raise self._wrong(thread, at, str(wrong), chunk) from None
        assert total is not None
        if self.on_fold and len(sources) > 1:
            self.on_fold(self._place(thread, at), total)
        if scale:
            try:
                total = [values.scale(v) for v in total]
            except WrongValueError as wrong:
                raise self._wrong(thread, at, str(wrong), chunk) from None
        for kind, index in destinations:
            if kind == MESSAGE:
                if self.asked[index] <= self.filled[index]:
                    raise self._unpaired(thread, at, index, "writes a slot that may be in use")
                self.pending[index] = total
            else:
                memory[index + offset : index + offset + n] = total

    def _message(self, thread: int, at: int, edge: int, chunk: int, n: int) -> list[int]:
        """Return what the next slot of ``edge`` holds, if it is there and is these chunks."""
        number = self.consumed[edge]
        if self.awaited[edge] <= number:
            raise self._unpaired(thread, at, edge, "reads a slot that may not be filled yet")
        got = self.messages[edge][number]
        if got is None:
            raise self._wrong(thread, at, "reads a slot that was signalled but never filled", chunk)
        values, by_position = self.values, self.network.equal_blocks
        twist = self.network.edges[edge].twist
        if twist:
            assert isinstance(values, SymmetricValues)
            got = values.moved(got, twist, by_chunk=not by_position)
        first = values.chunk(got[0])
        right = by_position or first == chunk
        if twist and not by_position:  # what was a range may have been brought to any chunks
            right = [*map(values.chunk, got)] == [*range(chunk, chunk + n)]
        if len(got) != n or not right:
            raise self._wrong(
                thread,
                at,
                f"reads chunks {chunk} to {chunk + n - 1} from a slot that holds {first} to "
                f"{first + len(got) - 1}",
                chunk,
            )
        return got

    def _wrong(
        self,
        thread: int,
        at: int,
        text: str,
        chunk: int | None = None,
        kind: type[ScheduleError] = PostconditionError,
    ) -> ScheduleError:
        """Return the finding at a step, drawn with the peer whose message it handles last."""
        code = self.network.threads[thread].code
        peers = []
        for kind_, *rest in code[at::-1]:
            if kind_ == FOLD:
                peers = [i for k, i in rest[2] if k == MESSAGE]
                break
        others = dict.fromkeys(self.network.edges[p].source for p in peers)
        places = [self._place(thread, at), *(self._place(t, self.steps[t]) for t in others)]
        return finding(kind, text, *places, chunk=chunk)

    def _unpaired(self, thread: int, at: int, edge: int, text: str) -> ScheduleError:
        """Return the finding of a slot that is used without its WAIT."""
        ends = self.network.edges[edge]
        other = ends.target if thread == ends.source else ends.source
        peer = self.network.threads[other].program.rank
        return finding(
            RaceError,
            f"{text}: no WAIT orders it after rank {peer}'s signal",
            self._place(thread, at),
            self._place(other, self.steps[other]),
        )

    def _place(self, thread: int, at: int) -> At:
        return self.network.threads[thread].at(at)
