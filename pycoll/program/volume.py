"""Volume: how many messages and bytes one rank sends and receives in a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pycoll.program.isa import EdgeKind, Op, Space
from pycoll.program.program import Program


class Volume(NamedTuple):
    """What one edge carries in a call."""

    messages: int  #: in each tile
    nbytes: int  #: in all tiles


def volume(program: Program, starts: Sequence[int]) -> list[Volume]:
    """Return what each edge of a Program carries in one call; nothing where it has no slots.

    Args:
        program: A rank's.
        starts: Where each chunk of the message begins, in bytes; then where the last one ends.
    """
    found = [Volume(0, 0)] * len(program.edges)
    held = [0] * len(program.edges)  # bytes of the message that a slot holds
    for i in program.instructions:
        if i.op is Op.REDUCE_COPY:
            for o in i.sources + i.destinations:
                if o.space is Space.SLOT:
                    held[o.edge] = starts[o.chunk + o.nchunks] - starts[o.chunk]
        elif i.op is Op.SIGNAL and program.edges[i.edge].kind is EdgeKind.DATA:
            messages, nbytes = found[i.edge]
            found[i.edge] = Volume(messages + 1, nbytes + held[i.edge])
    return found
