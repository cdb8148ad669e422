"""What the verifier found: an error with its place and a small drawn counterexample.

The drawing has one column per rank involved: the last instructions of its channel, with an
arrow at the one in conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pycoll.errors import ScheduleError
from pycoll.program import disassemble
from pycoll.program.isa import Op, Space
from pycoll.program.program import Program

SHOWN = 5  #: instructions drawn per rank
COLUMNS = 4  #: ranks drawn
WIDTH = 46  #: characters of one column at most


class At(NamedTuple):
    """One instruction of one rank."""

    program: Program
    channel: int
    instruction: int  #: index into the Program's instructions


def finding(
    kind: type[ScheduleError], text: str, *places: At, chunk: int | None = None
) -> ScheduleError:
    """Return the error; ``places[0]`` is where it happens, the others take part in it."""
    first = places[0]
    where = f"rank {first.program.rank}, channel {first.channel}, #{first.instruction}"
    error = kind(f"{where}: {text}\n\n{draw(places)}")
    vars(error).update(
        rank=first.program.rank, channel=first.channel, instruction=first.instruction, chunk=chunk
    )
    return error


def draw(places: Sequence[At]) -> str:
    """Draw the last instructions of each place in columns, aligned at the conflict."""
    columns: list[list[str]] = []
    for at in places[:COLUMNS]:
        start = at.program.channel_starts[at.channel]
        shown = range(max(start, at.instruction - SHOWN + 1), at.instruction + 1)
        lines = [
            f"{'->' if i == at.instruction else '  '} #{i} {describe(at.program, i)}" for i in shown
        ]
        lines = [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines]
        head = f"   rank {at.program.rank} channel {at.channel}"
        columns.append([head, *[""] * (SHOWN - len(lines)), *lines])
    blank = [k for k in range(SHOWN + 1) if all(not column[k] for column in columns)]
    widths = [max(len(line) for line in column) for column in columns]
    rows = (
        "   ".join(column[k].ljust(w) for column, w in zip(columns, widths, strict=True)).rstrip()
        for k in range(SHOWN + 1)
        if k not in blank
    )
    return "\n".join(rows)


def describe(program: Program, index: int) -> str:
    """Say one instruction as the disassembler does, in as little room as the drawing has."""
    i = program.instructions[index]
    edges = [i.edge] if i.op in (Op.SIGNAL, Op.WAIT) else []
    edges += [o.edge for o in i.sources + i.destinations if o.space == Space.SLOT]
    if any(not 0 <= edge < len(program.edges) for edge in edges):
        return i.op.name  # it names an edge that is not there, which may be what is wrong
    return " ".join(disassemble.describe(program, i).removeprefix(Op.REDUCE_COPY.name).split())
