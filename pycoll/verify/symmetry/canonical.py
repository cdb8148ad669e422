"""How an element of a group acts on a Program, and by what a rank knows that its own is covered.

g·P is P for rank g·r: its peers and its chunks are moved by g, and everything else (the order of
edges, instructions and operands, flags, targets, scratch places, the header) stays as it is. So
g⁻¹ undoes it, nothing is sorted or forgotten, and two Programs with one digest are the same up to
their places in the group.

A range of chunks stands for the instruction on each of its chunks, and a message of chunks for
what it holds of each. So a range may be brought to any range of the same chunks in whatever order,
as XOR does; where an operand lies by position (in scratch, or where any chunk may lie in the place
of any other) the order must be kept, too. What is not a range any more has no image.

Scratch is moved as chunks are where a Program uses it in whole windows only (a window being the
chunks that change places with each other): each of them is then at the place of the same chunk on
every rank, so the order inside a window need not be kept.

Where all blocks are equally long, the number of a chunk says no more than its length, and lowering
takes it from the first source: it is moved where that lies in the place of a chunk, and stays where
it lies in scratch.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.errors import ScheduleError
from pycoll.program.image import Image
from pycoll.program.isa import Space
from pycoll.program.program import Program
from pycoll.verify.symmetry.group import Group

DIGEST_BYTES = 16

_Numbers = npt.NDArray[Any]


class NotSymmetricError(ScheduleError):
    """A Program that a group has no image of, or that is not the image of its representative."""


def moved(program: Program, group: Group, g: int) -> Program:
    """Return g·program; NotSymmetricError where a range of chunks would be no range any more."""
    image = _image(program)
    move(image, group, g)
    return Program.from_bytes(image.to_bytes())


def class_digest(image: Image) -> bytes:
    """Return the digest of the Program of a representative."""
    return hashlib.blake2b(image.to_bytes(), digest_size=DIGEST_BYTES).digest()


def canonical_digest(program: Program, group: Group, rank: int) -> bytes:
    """Return the digest of ``program`` as the representative of ``rank`` would have it.

    A proof of the representatives covers a rank if this, computed by that rank of the Program that
    it has lowered for itself, is the digest of its class.

    Raises:
        NotSymmetricError: A range of chunks is no range for the representative, or a field does not
            fit what is loaded.
    """
    image = _image(program)
    move(image, group, group.inverse(group.element(rank)))
    return class_digest(image)


def is_moved(program: Program, base: Program, group: Group, g: int) -> bool:
    """Tell whether ``program`` is g·base; what differs early is seen early."""
    back = group.inverse(g)
    if len(program.instructions) != len(base.instructions):
        return False
    header = replace(program, rank=base.rank, edges=base.edges, instructions=base.instructions)
    if header != base or group.rank(back, program.rank) != base.rank:
        return False
    try:
        image = _image(program)
        move(image, group, back)
        return image.to_bytes() == base.to_bytes()
    except NotSymmetricError:
        return False


def _image(program: Program) -> Image:
    try:
        return Image.of(program.to_bytes())
    except struct.error as error:
        raise NotSymmetricError(f"program {program.rank} has no bytes: {error}") from None


def move(image: Image, group: Group, g: int) -> None:
    """Make it g·P where it is P; NotSymmetricError where there is none, and it is spoilt."""
    operands, who = image.operands, image.rank
    spaces, places, chunks = (operands[name].astype(np.int64) for name in _FIELDS)
    counts = operands["nchunks"].astype(np.int64)
    in_message = (spaces != Space.SLOT) & (spaces != Space.SCRATCH)
    if not group.equal_blocks and (wrong := in_message & (places != chunks)).any():
        at = int(np.argmax(wrong))
        raise NotSymmetricError(
            f"program {who}: operand {Space(spaces[at]).name}: chunk {chunks[at]} lies at place "
            f"{places[at]}"
        )
    owner, first_of = _instructions(image)
    beside_scratch = np.zeros(len(first_of), bool)
    beside_scratch[owner[spaces == Space.SCRATCH]] = True
    if group.equal_blocks:
        first = spaces[first_of]
        place = np.where(first == Space.SLOT, ~beside_scratch, first != Space.SCRATCH)
        labelled = place[owner]  # the first source lies in the place of a chunk
        in_order = np.ones(len(operands), bool)
    else:
        labelled = np.ones(len(operands), bool)
        beside = beside_scratch[owner]
        by_position = np.concatenate(
            [places[spaces == Space.SCRATCH], chunks[beside], counts[beside]]
        )
        in_order = beside & (not _in_windows(group, by_position))
    mover = _Mover(group, g, who)
    for name, numbers, which in (("place", places, in_message), ("chunk", chunks, labelled)):
        found = mover.firsts(numbers[which], counts[which], in_order[which], spaces[which])
        operands[name][which] = found
    far = (spaces == Space.PEER_IN) | (spaces == Space.PEER_OUT)
    operands["edge"][far] = group.rank(g, operands["edge"][far].astype(np.int64))
    image.edges["peer"] = group.rank(g, image.edges["peer"].astype(np.int64))
    image.header["rank"] = group.rank(g, who)


_FIELDS = ("space", "place", "chunk")


def _in_windows(group: Group, numbers: _Numbers) -> bool:
    """Tell whether all are multiples of a window, within which the group moves chunks."""
    window = group.unit * group.order
    return window > 0 and not (numbers % window).any()


def _instructions(image: Image) -> tuple[_Numbers, _Numbers]:
    """Number the instructions that have operands; return whose each operand is, and the first."""
    code = image.instructions
    counts = code["nsrc"].astype(np.int64) + code["ndst"]
    counts = counts[counts > 0]
    if counts.sum() != len(image.operands):
        raise NotSymmetricError(f"program {image.rank}: operands of no instruction, or of several")
    return np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts


class _Mover:
    def __init__(self, group: Group, g: int, who: int) -> None:
        self.group, self.g, self.who = group, g, who

    def firsts(
        self, numbers: _Numbers, counts: _Numbers, in_order: _Numbers, spaces: _Numbers
    ) -> _Numbers:
        """Return where ranges of so many chunks begin afterwards."""
        found = self.group.chunk(self.g, numbers) if len(numbers) else numbers
        wide = np.flatnonzero(counts > 1)
        known: dict[tuple[int, int, bool], int] = {}
        for at in wide.tolist():
            key = int(numbers[at]), int(counts[at]), bool(in_order[at])
            if key not in known:
                known[key] = self._first(*key, Space(spaces[at]))
            found[at] = known[key]
        return found

    def _first(self, first: int, n: int, in_order: bool, space: Space) -> int:
        group, g = self.group, self.g
        runs = group.chunks(g, first, n)
        start = runs[0][0] if runs else first
        mine: _Numbers = np.arange(n)
        kept = not in_order or np.array_equal(group.chunk(g, mine + first), mine + start)
        if len(runs) != 1 or not kept:
            raise NotSymmetricError(
                f"program {self.who}: operand {space.name}: chunks {first} to {first + n - 1} are "
                f"no range, or in another order, after {group.name} by {g}"
            )
        return start
