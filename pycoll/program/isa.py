"""The instruction set: the one table from which C, the reference and the disassembler are made.

``python -m pycoll.program.isa`` writes ``native/isa.h``; a test fails when the file in the
tree differs from what this module would write.

A Program is a header, a table of channel starts, edges, instructions and operands, all
little-endian with fixed sizes. A *place* is where a chunk-sized piece lies in a buffer; a
*chunk* is which piece of the message the value belongs to and so decides how long it is. In IN
and OUT (a rank's own or a peer's) place and chunk are equal, but where all blocks are equally
long any chunk may lie at any place; SCRATCH may hold any chunk at any place; a SLOT holds the
pieces of its chunk range packed one behind the other. All operands of an instruction name the
same chunks.

IN and OUT of a rank may have only some of the chunks: a Program touches no others.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

from pycoll.dtypes import DTYPES, MOVED, ReduceOp

MAGIC = 0x4C4F4350  #: "PCOL"
VERSION = 2
MAX_SOURCES = 8  #: sources of one REDUCE_COPY
MAX_DESTINATIONS = 8  #: destinations of one REDUCE_COPY
HOST_DESTINATIONS = 2  #: of one that a CPU runs; the first receiver would wait for all others
MAX_CHANNELS = 4  #: ordered streams per rank
MAX_RANKS = 1 << 20  #: of a communicator
CHUNK_UNIT = 64  #: bytes; every chunk bound but the last is a multiple of it


class Op(enum.IntEnum):
    """What one instruction does."""

    END = 0  #: the channel is finished
    REDUCE_COPY = 1  #: every destination = fold of the sources in operand order
    SIGNAL = 2  #: raise the count of `edge` by one (release)
    WAIT = 3  #: until the count of `edge` allows the next send, or holds the next message (acquire)
    LOOP = 4  #: the body up to END_LOOP runs once per tile; encloses a whole channel
    END_LOOP = 5  #: next tile: continue behind LOOP, whose index is `target`


class Flag(enum.IntFlag):
    """Bits of an instruction's `flags`."""

    SCALE = 1  #: this REDUCE_COPY completes an average: divide by the number of ranks


class Space(enum.IntEnum):
    """Where an operand lies."""

    IN = 0  #: the caller's input; may be the same memory as OUT
    OUT = 1  #: the caller's output
    SCRATCH = 2  #: this rank's own, one tile per place, lives for one tile of one channel
    SLOT = 3  #: the next slot of `edge` (sending: to be filled; receiving: to be read)
    PEER_IN = 4  #: the input of rank `edge` (direct form only)
    PEER_OUT = 5  #: the output of rank `edge` (direct form only)


class EdgeKind(enum.IntEnum):
    """What an edge carries."""

    DATA = 0  #: a FIFO of slots from one rank to another, per channel
    LOCAL = 1  #: a count between two channels of this rank
    DONE = 2  #: a count by which a rank says that it no longer touches a peer's memory


class Direction(enum.IntEnum):
    """Which end of an edge this rank holds."""

    SEND = 0  #: WAIT: a slot is free (counts need none). SIGNAL: it is filled.
    RECV = 1  #: WAIT: a message is there. SIGNAL: it has been consumed.


class ProgramFlag(enum.IntFlag):
    """Bits of a Program's `flags`."""

    DIRECT = 1  #: reads and writes peers' IN and OUT; started only after every rank's READY


# name, struct code, C type; the order is the layout
HEADER_FIELDS = (
    ("magic", "I", "uint32_t"),
    ("version", "H", "uint16_t"),
    ("flags", "H", "uint16_t"),
    ("digest", "Q", "uint64_t"),  # of the schedule and the lowering; equal on all ranks
    ("rank", "I", "uint32_t"),
    ("size", "I", "uint32_t"),
    ("nchunks", "I", "uint32_t"),  # pieces that IN and OUT are cut into
    ("nscratch", "I", "uint32_t"),  # places of SCRATCH
    ("widest", "I", "uint32_t"),  # chunks in the widest SLOT range of any rank
    ("nchannels", "I", "uint32_t"),
    ("nedges", "I", "uint32_t"),
    ("ninstructions", "I", "uint32_t"),
    ("noperands", "I", "uint32_t"),
    ("reserved", "I", "uint32_t"),
)
EDGE_FIELDS = (
    ("peer", "I", "uint32_t"),
    ("kind", "B", "uint8_t"),
    ("direction", "B", "uint8_t"),
    ("channel", "B", "uint8_t"),  # DATA: of both ends. LOCAL: the signalling channel
    ("other", "B", "uint8_t"),  # LOCAL: the waiting channel; else 0
)
INSTRUCTION_FIELDS = (
    ("op", "B", "uint8_t"),
    ("flags", "B", "uint8_t"),
    ("nsrc", "B", "uint8_t"),
    ("ndst", "B", "uint8_t"),
    ("edge", "I", "uint32_t"),  # SIGNAL, WAIT: index into the edge table
    ("operand", "I", "uint32_t"),  # REDUCE_COPY: first operand; sources, then destinations
    ("target", "I", "uint32_t"),  # LOOP: its END_LOOP; END_LOOP: its LOOP (indices from 0)
)
OPERAND_FIELDS = (
    ("space", "I", "uint32_t"),
    ("edge", "I", "uint32_t"),  # SLOT: index into the edge table; PEER_*: the peer's rank
    ("place", "I", "uint32_t"),  # first place; 0 for a SLOT
    ("chunk", "I", "uint32_t"),  # first chunk of the value
    ("nchunks", "I", "uint32_t"),  # chunks in the range, at least 1
)

STRUCTS = {
    "header": HEADER_FIELDS,
    "edge": EDGE_FIELDS,
    "instruction": INSTRUCTION_FIELDS,
    "operand": OPERAND_FIELDS,
}


def layout(fields: tuple[tuple[str, str, str], ...]) -> struct.Struct:
    """Return the packer of one record."""
    return struct.Struct("<" + "".join(code for _, code, _ in fields))


HEADER = layout(HEADER_FIELDS)
EDGE = layout(EDGE_FIELDS)
INSTRUCTION = layout(INSTRUCTION_FIELDS)
OPERAND = layout(OPERAND_FIELDS)
CHANNEL_START = struct.Struct("<I")


def _lines() -> Iterator[str]:
    yield "/* Generated from pycoll/program/isa.py by `make isa`; do not edit. */"
    yield "#ifndef PC_ISA_H"
    yield "#define PC_ISA_H"
    yield "#include <stdint.h>"
    yield ""
    for name in (
        "MAGIC",
        "VERSION",
        "MAX_SOURCES",
        "MAX_DESTINATIONS",
        "HOST_DESTINATIONS",
        "MAX_CHANNELS",
        "MAX_RANKS",
    ):
        yield f"#define PC_{name} {globals()[name]}u"
    yield f"#define PC_CHUNK_UNIT {CHUNK_UNIT}u"
    for prefix, tag, table in (
        ("OP", "opcode", Op),
        ("FLAG", "instruction_flag", Flag),
        ("SPACE", "space", Space),
        ("EDGE", "edge_kind", EdgeKind),
        ("DIRECTION", "direction", Direction),
        ("PROGRAM", "program_flag", ProgramFlag),
        ("REDUCE", "reduce_op", ReduceOp),
    ):
        yield ""
        members = ", ".join(f"PC_{prefix}_{m.name} = {m.value}" for m in table)
        yield f"enum pc_{tag} {{ {members} }};"
    yield ""
    named = (*DTYPES, *MOVED)
    members = ", ".join(f"PC_DTYPE_{d.name.upper()} = {d.code}" for d in named)
    yield f"enum pc_dtype {{ {members} }};"
    yield f"#define PC_NDTYPES {len(DTYPES)}u /* that are reduced; those behind are moved only */"
    yield f"#define PC_NNAMED {len(named)}u"
    yield "#define PC_DTYPE_NAMES { " + ", ".join(f'"{d.name}"' for d in named) + " }"
    yield "#define PC_DTYPE_BYTES { " + ", ".join(str(d.itemsize) for d in named) + " }"
    logs = ", ".join(str(d.itemsize.bit_length() - 1) for d in DTYPES)
    yield f"#define PC_DTYPE_LOG2_BYTES {{ {logs} }} /* of those that are reduced */"
    yield f"#define PC_NREDUCE {len(ReduceOp)}u"
    yield "#define PC_REDUCE_NAMES { " + ", ".join(f'"{m.name.lower()}"' for m in ReduceOp) + " }"
    for name, fields in STRUCTS.items():
        yield ""
        yield f"struct pc_{name} {{"
        for field, _, ctype in fields:
            yield f"    {ctype} {field};"
        yield "};"
        size = layout(fields).size
        yield f'_Static_assert(sizeof(struct pc_{name}) == {size}, "pc_{name} is {size} bytes");'
    yield ""
    yield "#endif"


def header_text() -> str:
    """Return the text of ``native/isa.h``."""
    return "\n".join(_lines()) + "\n"


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).parents[2].joinpath("native", "isa.h").write_text(header_text())
