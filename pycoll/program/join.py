"""Join: all stores of one value become one REDUCE_COPY, for a target that stores to many at once.

Lowering splits it, as on a CPU the first receiver would wait until all others have theirs. The
threads of a GPU store to all of them in the time of one, and each REDUCE_COPY costs them a barrier.

A joined REDUCE_COPY runs behind the waits of all its parts and before their signals, so it might
close a circle of waits that the parts leave open. `feasible` has run the schedule with whatever
sends one value as one step, however many it sends to: so a Program may be joined where it found
that all ranks finish (`Facts.fused`). It took no edge twice in a step, and neither does this one,
not even where a step is too long for one REDUCE_COPY and so becomes several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pycoll.program.isa import Direction, EdgeKind, Flag, Op, Space
from pycoll.program.program import Instruction, Operand, Program


@dataclass
class _Part:
    """A REDUCE_COPY with the waits before it and the signals behind it, as `sync` makes them."""

    waits: list[Instruction]
    move: Instruction
    signals: list[Instruction]


def joined(program: Program, most: int) -> Program:
    """Return the Program with REDUCE_COPYs of up to ``most`` destinations.

    Args:
        program: Of a schedule that finishes with sends fused, or a direct form.
        most: Destinations of one REDUCE_COPY, at most.
    """
    code: list[Instruction] = []
    starts: list[int] = []
    ends = (*program.channel_starts[1:], len(program.instructions))
    for start, end in zip(program.channel_starts, ends, strict=True):
        starts.append(len(code))
        for item in _join(program, program.instructions[start:end], most):
            if isinstance(item, _Part):
                code += (*item.waits, item.move, *item.signals)
            else:
                code.append(item)
        _close_loop(code, starts[-1])
    return replace(program, channel_starts=tuple(starts), instructions=tuple(code))


def _join(
    program: Program, channel: tuple[Instruction, ...], most: int
) -> Iterator[Instruction | _Part]:
    run = None
    for item in _parts(channel):
        if isinstance(item, _Part):
            if run is None or not run.takes(item):
                if run is not None:
                    yield from run.parts
                run = _Run(program, item, most)
            continue
        if run is not None:
            yield from run.parts
            run = None
        yield item
    if run is not None:
        yield from run.parts


def _parts(channel: tuple[Instruction, ...]) -> Iterator[Instruction | _Part]:
    """Return the parts of a channel, and between them what belongs to none."""
    waits: list[Instruction] = []
    part: _Part | None = None
    for i in channel:
        if i.op is Op.SIGNAL and part is not None:
            part.signals.append(i)
            continue
        if part is not None:
            yield part
            part = None
        if i.op is Op.WAIT:
            waits.append(i)
        elif i.op is Op.REDUCE_COPY:
            part, waits = _Part(waits, i, []), []
        else:
            yield from waits
            waits = []
            yield i
    if part is not None:
        yield part
    yield from waits


class _Run:
    """A part, and those behind it that store the value that it makes or sends."""

    def __init__(self, program: Program, first: _Part, most: int) -> None:
        self._edges, self._most = program.edges, most
        self.parts = [first]  #: what they have become
        self._value = {d for d in first.move.destinations if not _outgoing(d)}
        (source, *others) = first.move.sources
        if not others and source.space is not Space.SLOT and not first.move.flags & Flag.SCALE:
            self._value.add(source)
        self._taken = set(map(_end, filter(_outgoing, first.move.destinations)))

    def takes(self, part: _Part) -> bool:
        """Make a part one with what there is, or a further one; False: it sends something else."""
        (source, *others) = part.move.sources
        kept = [d for d in part.move.destinations if not _outgoing(d)]
        ends = set(map(_end, filter(_outgoing, part.move.destinations)))
        if (
            others
            or source not in self._value
            or part.move.flags & Flag.SCALE
            # Elsewhere in OUT it might overwrite what is still to be read of IN.
            or any(d.place != source.place for d in kept)
            or not self._taken.isdisjoint(ends)
            or not all(map(self._of_send, part.waits + part.signals))
        ):
            return False
        self._taken |= ends
        self._value.update(kept)
        last = self.parts[-1]
        destinations = last.move.destinations + part.move.destinations
        if len(destinations) > self._most:
            self.parts.append(part)
            return True
        last.waits += part.waits
        last.move = last.move._replace(destinations=destinations)
        # The peer that waits for data comes before those that wait for anything else.
        sends = sum(map(self._of_send, last.signals))
        last.signals[sends:sends] = part.signals
        return True

    def _of_send(self, i: Instruction) -> bool:
        edge = self._edges[i.edge]
        return edge.kind is EdgeKind.DATA and edge.direction is Direction.SEND


def _outgoing(place: Operand) -> bool:
    return place.space is Space.SLOT or place.space is Space.PEER_OUT


def _end(place: Operand) -> tuple[Space, int]:
    return place.space, place.edge


def _close_loop(code: list[Instruction], first: int) -> None:
    """Have LOOP and END_LOOP of the channel that begins there name each other."""
    loop = first
    for at in range(first, len(code)):
        if code[at].op is Op.LOOP:
            loop = at
        elif code[at].op is Op.END_LOOP:
            code[loop] = code[loop]._replace(target=at)
            code[at] = code[at]._replace(target=loop)
