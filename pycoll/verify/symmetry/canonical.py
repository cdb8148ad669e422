"""How an element of a group acts on a Program, and by what a rank knows that its own is covered.

g·P is P for rank g·r: its peers and its chunks are moved by g, and everything else (the order of
edges, instructions and operands, flags, targets, scratch places, the header) stays as it is. So
g⁻¹ undoes it, nothing is sorted or forgotten, and two Programs with one digest are the same up to
their places in the group.

A range of chunks stands for the instruction on each of its chunks, and a message of chunks for
what it holds of each. So a range may be brought to any range of the same chunks in whatever order,
as XOR does; where an operand lies by position (in scratch, or where any chunk may lie in the place
of any other) the order must be kept, too. What is not a range any more has no image.

Where all blocks are equally long, the number of a chunk says no more than its length, and lowering
takes it from the first source: it is moved where that lies in the place of a chunk, and stays where
it lies in scratch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import replace

from pycoll.errors import ScheduleError
from pycoll.program.isa import Space
from pycoll.program.program import Edge, Instruction, Operand, Program
from pycoll.verify.symmetry.group import Group

DIGEST_BYTES = 16


class NotSymmetricError(ScheduleError):
    """A Program that a group has no image of, or that is not the image of its representative."""


def moved(program: Program, group: Group, g: int) -> Program:
    """Return g·program; NotSymmetricError where a range of chunks would be no range any more."""
    return replace(
        program,
        rank=group.rank(g, program.rank),
        edges=tuple(_edges(program, group, g)),
        instructions=tuple(_instructions(program, group, g)),
    )


def canonical_digest(program: Program, group: Group, rank: int) -> bytes:
    """Return the digest of ``program`` as the representative of ``rank`` would have it.

    A proof of the representatives covers a rank if this, computed by that rank of the Program that
    it has lowered for itself, is the digest of its class.

    Raises:
        NotSymmetricError: A range of chunks is no range for the representative, or a field does not
            fit what is loaded.
    """
    base = moved(program, group, group.inverse(group.element(rank)))
    try:
        blob = base.to_bytes()
    except struct.error as error:
        raise NotSymmetricError(f"program {program.rank} has no bytes: {error}") from None
    return hashlib.blake2b(blob, digest_size=DIGEST_BYTES).digest()


def is_moved(program: Program, base: Program, group: Group, g: int) -> bool:
    """Tell whether ``program`` is g·base; what differs early is seen early."""
    back = group.inverse(g)
    if len(program.instructions) != len(base.instructions):
        return False
    header = replace(program, rank=base.rank, edges=base.edges, instructions=base.instructions)
    if header != base or group.rank(back, program.rank) != base.rank:
        return False
    try:
        return tuple(_edges(program, group, back)) == base.edges and all(
            mine == theirs
            for mine, theirs in zip(
                _instructions(program, group, back), base.instructions, strict=True
            )
        )
    except NotSymmetricError:
        return False


def _edges(program: Program, group: Group, g: int) -> Iterator[Edge]:
    for edge in program.edges:
        yield edge._replace(peer=group.rank(g, edge.peer))


def _instructions(program: Program, group: Group, g: int) -> Iterator[Instruction]:
    mover = _Mover(program, group, g)
    for i in program.instructions:
        yield mover.instruction(i) if i.sources or i.destinations else i


class _Mover:
    def __init__(self, program: Program, group: Group, g: int) -> None:
        self.program, self.group, self.g = program, group, g

    def instruction(self, i: Instruction) -> Instruction:
        operands = i.sources + i.destinations
        labelled = self._labels_are_places(operands)
        in_order = self.group.equal_blocks or any(o.space == Space.SCRATCH for o in operands)
        count = len(i.sources)
        done = [self._operand(o, labelled, in_order) for o in operands]
        return i._replace(sources=tuple(done[:count]), destinations=tuple(done[count:]))

    def _labels_are_places(self, operands: tuple[Operand, ...]) -> bool:
        if not self.group.equal_blocks:
            return True
        first = operands[0].space
        if first == Space.SLOT:
            return all(o.space != Space.SCRATCH for o in operands)
        return first != Space.SCRATCH

    def _operand(self, o: Operand, labelled: bool, in_order: bool) -> Operand:
        space, edge, place, chunk, n = o
        if space in (Space.PEER_IN, Space.PEER_OUT):
            edge = self.group.rank(self.g, edge)
        if space not in (Space.SLOT, Space.SCRATCH):
            if not self.group.equal_blocks and place != chunk:
                raise NotSymmetricError(f"{self._where(o)}: chunk {chunk} lies at place {place}")
            place = self._first(o, place, in_order)
        if labelled:
            chunk = self._first(o, chunk, in_order)
        return Operand(space, edge, place, chunk, n)

    def _first(self, o: Operand, first: int, in_order: bool) -> int:
        group, g, n = self.group, self.g, o.nchunks
        if n == 1:
            return group.chunk(g, first)
        runs = group.chunks(g, first, n)
        start = runs[0][0] if runs else first
        if len(runs) != 1 or (
            in_order and any(group.chunk(g, first + k) != start + k for k in range(n))
        ):
            raise NotSymmetricError(
                f"{self._where(o)}: chunks {first} to {first + n - 1} are no range, or in another "
                f"order, after {group.name} by {g}"
            )
        return start

    def _where(self, o: Operand) -> str:
        return f"program {self.program.rank}: operand {o.space.name}"
