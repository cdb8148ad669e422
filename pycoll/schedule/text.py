"""The text form of a Schedule: one line a step; ``parse(dump(s)) == s``."""

from __future__ import annotations

import re

from pycoll.errors import ScheduleError
from pycoll.schedule.chunk import BUFFER_NAMES, Buffer, Chunks
from pycoll.schedule.collective import COLLECTIVES
from pycoll.schedule.schedule import Schedule, check_messages
from pycoll.schedule.step import Kind, Step

# Compiled when first used: most jobs never read a text.
_HEAD = r"schedule (\S+) (\S+) size ([1-9]\d*) chunks ([1-9]\d*) scratch (\d+)"
_STEP = (
    r"(?:\[(?P<channel>\d)\] )?(?P<kind>send|recv_reduce|recv|copy|reduce) (?P<first>\S+) "
    r"(?:to|from|into) (?P<rest>.+)"
)
_CHUNKS = r"(in|out|scratch)\[(\d+)(?::(\d+))?\](?:@(-?\d+))?"
_BUFFERS = {name: buffer for buffer, name in BUFFER_NAMES.items()}


def dump(s: Schedule) -> str:
    """Return the text form."""
    return str(s)


def parse(text: str) -> Schedule:
    """Read the text form; ScheduleError names the line that it cannot read."""
    lines = text.splitlines()
    head = re.fullmatch(_HEAD, lines[0]) if lines else None
    if head is None or head[2] not in COLLECTIVES:
        raise ScheduleError(
            f"line 1: {lines[0] if lines else ''!r}, want 'schedule NAME COLLECTIVE size N chunks "
            f"N scratch N' with a collective of {', '.join(COLLECTIVES)}"
        )
    size, nchunks, nscratch = (int(head[i]) for i in (3, 4, 5))
    COLLECTIVES[head[2]].check_chunks(nchunks, size)
    ranks: list[list[Step]] = []
    for number, line in enumerate(lines[1:], 2):
        if line == f"rank {len(ranks)}" and len(ranks) < size:
            ranks.append([])
            continue
        step = _step(line.strip(), len(ranks) - 1, nchunks) if ranks else None
        if step is None:
            raise ScheduleError(f"line {number}: {line!r} is no step and not 'rank {len(ranks)}'")
        ranks[-1].append(step)
    if len(ranks) != size:
        raise ScheduleError(f"the text holds {len(ranks)} ranks, want {size}")
    result = Schedule(
        head[1], COLLECTIVES[head[2]], size, nchunks, nscratch, tuple(tuple(r) for r in ranks)
    )
    check_messages(result)
    return result


def _step(line: str, rank: int, nchunks: int) -> Step | None:
    m = re.fullmatch(_STEP, line)
    first = _chunks(m["first"], nchunks) if m else None
    if m is None or first is None:
        return None
    kind, channel = Kind[m["kind"].upper()], int(m["channel"] or 0)
    if kind in (Kind.COPY, Kind.REDUCE):
        into = _chunks(m["rest"], nchunks)
        return into and Step(kind, channel, into, source=first)
    peers = m["rest"].split()
    if not all(p.isdecimal() for p in peers):
        return None
    order = tuple(map(int, peers))
    wrong = (len(order) < 2 or rank not in order) if kind is Kind.RECV_REDUCE else len(order) != 1
    return None if wrong else Step(kind, channel, first, order)


def _chunks(text: str, nchunks: int) -> Chunks | None:
    m = re.fullmatch(_CHUNKS, text)
    if m is None:
        return None
    buffer, start = _BUFFERS[m[1]], int(m[2])
    count = int(m[3]) - start if m[3] else 1
    if count < 1 or (buffer is Buffer.SCRATCH) != (m[4] is not None):
        return None
    if buffer is not Buffer.SCRATCH and start + count > nchunks:
        return None
    return Chunks(buffer, start, int(m[4]) if m[4] else start, count)
