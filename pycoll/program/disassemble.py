"""Disassembler: a Program as text, one line an instruction."""

from __future__ import annotations

from pycoll.program.isa import Direction, EdgeKind, Flag, Op, ProgramFlag, Space
from pycoll.program.program import Edge, Instruction, Operand, Program


def disassemble(program: Program) -> str:
    """Return the text; instruction numbers are those that errors and the verifier name."""
    form = "direct" if program.flags & ProgramFlag.DIRECT else "staged"
    lines = [
        f"program of rank {program.rank} of {program.size}, {form}, {program.digest:016x}: "
        f"{program.nchunks} chunks, {program.nscratch} scratch, widest {program.widest}"
    ]
    starts = {at: channel for channel, at in enumerate(program.channel_starts)}
    for number, instruction in enumerate(program.instructions):
        if number in starts:
            lines.append(f"channel {starts[number]}")
        lines.append(f"{number:5} {describe(program, instruction)}")
    return "\n".join(lines) + "\n"


def describe(program: Program, i: Instruction) -> str:
    """Return the text of one instruction."""
    if i.op is Op.REDUCE_COPY:
        sources = " . ".join(_operand(program, o) for o in i.sources)
        destinations = ", ".join(_operand(program, o) for o in i.destinations)
        scale = " / size" if i.flags & Flag.SCALE else ""
        text = f"{destinations} = {sources}{scale}"
    elif i.op in (Op.SIGNAL, Op.WAIT):
        text = _count(program.edges[i.edge])
    elif i.op is Op.LOOP:
        text = f"over tiles up to {i.target}"
    else:
        text = f"from {i.target}" if i.op is Op.END_LOOP else ""
    return f"{i.op.name:<12}{text}".rstrip()


def _count(e: Edge) -> str:
    sending = e.direction is Direction.SEND
    if e.kind is EdgeKind.LOCAL:
        return f"local {e.channel} -> {e.other}"
    word = "done" if e.kind is EdgeKind.DONE else "slot"
    return f"{word} {'to' if sending else 'from'} {e.peer}"


def _operand(program: Program, o: Operand) -> str:
    name = o.space.name.lower()
    if o.space is Space.SLOT:
        return f"({_count(program.edges[o.edge])})[{_span(o.chunk, o.nchunks)}]"
    if o.space is Space.SCRATCH:
        return f"{name}[{_span(o.place, o.nchunks)}]@{o.chunk}"
    owner = f" {o.edge}" if o.space in (Space.PEER_IN, Space.PEER_OUT) else ""
    return f"{name}{owner}[{_span(o.place, o.nchunks)}]"


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}:{first + count}"
