"""Seeded faults, planted in the Programs of all ranks or in the steps of a Schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pycoll.program.isa import Flag, Op, Space
from pycoll.program.program import Instruction, Operand, Program
from pycoll.schedule import Buffer, Chunks, Kind, Schedule, Step

Programs = tuple[Program, ...]


def relink(program: Program, channels: list[list[Instruction]]) -> Program:
    """Return the program with these instructions per channel; starts and targets set anew."""
    starts: list[int] = []
    code: list[Instruction] = []
    for channel in channels:
        starts.append(len(code))
        ops = [i.op for i in channel]
        if Op.LOOP in ops and Op.END_LOOP in ops:
            first, last = ops.index(Op.LOOP), ops.index(Op.END_LOOP)
            channel = list(channel)
            channel[first] = channel[first]._replace(target=len(code) + last)
            channel[last] = channel[last]._replace(target=len(code) + first)
        code += channel
    return replace(program, channel_starts=tuple(starts), instructions=tuple(code))


def channels_of(program: Program) -> list[list[Instruction]]:
    """Return the instructions per channel."""
    bounds = (*program.channel_starts, len(program.instructions))
    return [list(program.instructions[low:high]) for low, high in pairwise(bounds)]


def mutate_programs(programs: Sequence[Program], r: random.Random) -> tuple[str, Programs]:
    """Return the name of a fault and the programs with it, in one rank or in all alike."""
    name = r.choice(sorted(PROGRAM_FAULTS))
    victims = [r.randrange(len(programs))]
    if r.random() < 0.3:
        victims = list(range(len(programs)))
    seed = r.random()  # the same choices on every victim
    changed = list(programs)
    for victim in victims:
        changed[victim] = PROGRAM_FAULTS[name](changed[victim], random.Random(seed))
    return f"{name} on {'one rank' if len(victims) == 1 else 'all ranks'}", tuple(changed)


def _edit(program: Program, r: random.Random, *, only: frozenset[Op], how: str) -> Program:
    channels = channels_of(program)
    spots = [(c, k) for c, code in enumerate(channels) for k, i in enumerate(code) if i.op in only]
    if not spots:
        return program
    c, k = r.choice(spots)
    code = channels[c]
    if how == "drop":
        del code[k]
    elif how == "double":
        code.insert(k, code[k])
    elif how == "swap" and k + 1 < len(code):
        code[k : k + 2] = code[k + 1], code[k]
    elif how == "move":
        instruction = code.pop(k)
        code.insert(r.randrange(1, max(2, len(code) - 1)), instruction)
    elif how == "edge" and len(program.edges) > 1:
        other = r.choice([e for e in range(len(program.edges)) if e != code[k].edge])
        code[k] = code[k]._replace(edge=other)
    elif how == "operand":
        code[k] = _other_operand(program, code[k], r)
    elif how == "fewer":
        code[k] = _fewer_operands(code[k], r)
    elif how == "order":
        sources = list(code[k].sources)
        r.shuffle(sources)
        code[k] = code[k]._replace(sources=tuple(sources))
    elif how == "scale":
        code[k] = code[k]._replace(flags=code[k].flags ^ Flag.SCALE)
    return relink(program, channels)


def _fewer_operands(i: Instruction, r: random.Random) -> Instruction:
    field = r.choice(("sources", "destinations"))
    operands = list(getattr(i, field))
    if len(operands) == 1:
        field = "destinations" if field == "sources" else "sources"
        operands = list(getattr(i, field))
    del operands[r.randrange(len(operands))]
    return i._replace(**{field: tuple(operands)})


def _other_operand(program: Program, i: Instruction, r: random.Random) -> Instruction:
    field = r.choice(("sources", "destinations"))
    operands = list(getattr(i, field))
    k = r.randrange(len(operands))
    o: Operand = operands[k]
    how = r.choice(("chunk", "chunks", "space", "edge", "place", "count"))
    if how == "chunk":
        operands[k] = o._replace(chunk=o.chunk + r.choice((-1, 1)))
    elif how == "chunks":  # the whole instruction works on another chunk
        by = r.choice((-1, 1))
        return i._replace(
            sources=tuple(_shifted(s, by) for s in i.sources),
            destinations=tuple(_shifted(d, by) for d in i.destinations),
        )
    elif how == "space":
        spaces = (Space.IN, Space.OUT, Space.PEER_IN, Space.PEER_OUT)
        place = o.chunk if o.space == Space.SLOT else o.place
        operands[k] = o._replace(space=r.choice(spaces), place=place)
    elif how == "edge":
        operands[k] = o._replace(edge=r.randrange(max(program.size, len(program.edges))))
    elif how == "place":
        operands[k] = o._replace(place=o.place + r.choice((-1, 1)))
    else:
        operands[k] = o._replace(nchunks=o.nchunks + r.choice((-1, 1)))
    return i._replace(**{field: tuple(operands)})


def _shifted(o: Operand, by: int) -> Operand:
    own_place = o.space in (Space.SLOT, Space.SCRATCH)
    return o._replace(chunk=o.chunk + by, place=o.place + (0 if own_place else by))


def _edge_peer(program: Program, r: random.Random) -> Program:
    edges = list(program.edges)
    if not edges:
        return program
    k = r.randrange(len(edges))
    edges[k] = edges[k]._replace(peer=r.randrange(program.size))
    return replace(program, edges=tuple(edges))


def _edge_channel(program: Program, r: random.Random) -> Program:
    edges = list(program.edges)
    if not edges:
        return program
    k = r.randrange(len(edges))
    edges[k] = edges[k]._replace(channel=r.randrange(4))
    return replace(program, edges=tuple(edges))


_SYNC = frozenset((Op.WAIT, Op.SIGNAL))
_ALL = frozenset(Op)
_COPY = frozenset((Op.REDUCE_COPY,))


def _editing(only: frozenset[Op], how: str):  # type: ignore[no-untyped-def]
    return lambda program, r: _edit(program, r, only=only, how=how)


PROGRAM_FAULTS = {
    "WAIT dropped": _editing(frozenset((Op.WAIT,)), "drop"),
    "SIGNAL dropped": _editing(frozenset((Op.SIGNAL,)), "drop"),
    "REDUCE_COPY dropped": _editing(_COPY, "drop"),
    "bracket dropped": _editing(frozenset((Op.LOOP, Op.END_LOOP, Op.END)), "drop"),
    "WAIT or SIGNAL doubled": _editing(_SYNC, "double"),
    "REDUCE_COPY doubled": _editing(_COPY, "double"),
    "neighbours swapped": _editing(_ALL, "swap"),
    "WAIT or SIGNAL moved": _editing(_SYNC, "move"),
    "REDUCE_COPY moved": _editing(_COPY, "move"),
    "edge changed": _editing(_SYNC, "edge"),
    "operand changed": _editing(_COPY, "operand"),
    "operand dropped": _editing(_COPY, "fewer"),
    "operands reordered": _editing(_COPY, "order"),
    "SCALE toggled": _editing(_COPY, "scale"),
    "peer changed": _edge_peer,
    "channel changed": _edge_channel,
}


def mutate_schedule(s: Schedule, r: random.Random) -> tuple[str, Schedule]:
    """Return the name of a fault and the schedule with it, in one rank or in all alike."""
    name = r.choice(STEP_FAULTS)
    victims = [v for v in range(s.size) if s.ranks[v]]
    alike = r.random() < 0.5
    if not alike:
        victims = [r.choice(victims)]
    seed, ranks = r.random(), list(s.ranks)
    for victim in victims:
        steps = list(s.ranks[victim])
        _edit_steps(s, steps, victim, name, random.Random(seed))
        ranks[victim] = tuple(steps)
    return f"step {name} on {'all ranks' if alike else 'one rank'}", replace(s, ranks=tuple(ranks))


STEP_FAULTS = ("dropped", "doubled", "swapped", "peer", "chunk", "kind", "channel", "order")


def _edit_steps(s: Schedule, steps: list[Step], rank: int, how: str, r: random.Random) -> None:
    k = r.randrange(len(steps))
    step = steps[k]
    if how == "dropped":
        del steps[k]
    elif how == "doubled":
        steps.insert(k, step)
    elif how == "swapped":
        steps[k : k + 2] = steps[k : k + 2][::-1]
    elif how == "peer" and step.peers and s.size > 2:
        by = r.randrange(1, s.size)
        moved = tuple(p if p == rank else (p + by) % s.size for p in step.peers)
        if rank not in moved or step.kind is Kind.RECV_REDUCE:
            steps[k] = step._replace(peers=tuple(dict.fromkeys(moved)))
    elif how == "chunk":
        at = (step.chunks.place + r.choice((-1, 1))) % s.nchunks
        if step.chunks.buffer is not Buffer.SCRATCH and at + step.chunks.nchunks <= s.nchunks:
            chunks = Chunks(step.chunks.buffer, at, at, step.chunks.nchunks)
            steps[k] = step._replace(chunks=chunks)
    elif how == "kind" and step.kind is Kind.RECV:
        steps[k] = step._replace(kind=Kind.RECV_REDUCE, peers=(rank, *step.peers))
    elif how == "kind" and step.kind is Kind.RECV_REDUCE and len(step.peers) == 2:
        others = tuple(p for p in step.peers if p != rank)
        steps[k] = step._replace(kind=Kind.RECV, peers=others)
    elif how == "channel":
        steps[k] = step._replace(channel=(step.channel + r.randrange(1, 4)) % 4)
    elif how == "order" and len(step.peers) > 2:
        peers = list(step.peers)
        r.shuffle(peers)
        steps[k] = step._replace(peers=tuple(peers))
