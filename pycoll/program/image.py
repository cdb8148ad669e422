"""Image: a Program as the tables that native code loads, for what is done to all of it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.errors import ScheduleError
from pycoll.program import isa
from pycoll.program.isa import EdgeKind, Flag, ProgramFlag
from pycoll.program.lower import scaled
from pycoll.program.program import Program

Table = npt.NDArray[Any]


def _row(fields: tuple[tuple[str, str, str], ...]) -> np.dtype[Any]:
    return np.dtype([(name, f"<{code}") for name, code, _ in fields])


_HEADER = _row(isa.HEADER_FIELDS)
_START = np.dtype("<I")
_EDGE = _row(isa.EDGE_FIELDS)
_INSTRUCTION = _row(isa.INSTRUCTION_FIELDS)
_OPERAND = _row(isa.OPERAND_FIELDS)


@dataclass(frozen=True, eq=False)
class Image:
    """The bytes of a `Program`, with a name for each field."""

    header: Table  #: of one row
    starts: Table
    edges: Table
    instructions: Table
    operands: Table

    @classmethod
    def of(cls, blob: bytes) -> Image:
        """Return a writable copy of what `Program.to_bytes` gave; ScheduleError if it did not."""
        data = np.frombuffer(bytearray(blob), np.uint8)
        if len(data) < _HEADER.itemsize:
            raise ScheduleError(f"program has {len(data)} bytes, want at least {_HEADER.itemsize}")
        header = data[: _HEADER.itemsize].view(_HEADER)
        counted = ("nchannels", "nedges", "ninstructions", "noperands")
        tables, at = [], _HEADER.itemsize
        for name, row in zip(counted, (_START, _EDGE, _INSTRUCTION, _OPERAND), strict=True):
            end = at + int(header[name][0]) * row.itemsize
            if end > len(data):
                break
            tables.append(data[at:end].view(row))
            at = end
        if len(tables) != len(counted) or at != len(data):
            raise ScheduleError(f"program has {len(data)} bytes, want others by its header")
        return cls(header, *tables)

    def to_bytes(self) -> bytes:
        """Return the bytes, which ``pc_program_load`` reads."""
        tables = (self.header, self.starts, self.edges, self.instructions, self.operands)
        return b"".join(table.tobytes() for table in tables)

    @property
    def rank(self) -> int:
        """Return whose Program it is."""
        return int(self.header["rank"][0])

    @property
    def digest(self) -> int:
        """Return what all ranks that run the same schedule have alike."""
        return int(self.header["digest"][0])

    def peers(self) -> frozenset[int]:
        """Return the ranks that exchange messages or counts with this one."""
        far = self.edges["kind"] != EdgeKind.LOCAL
        return frozenset(self.edges["peer"][far].tolist())

    def scale(self, instructions: frozenset[int]) -> None:
        """Make it that of an average, in which some instructions divide, as `scaled` does."""
        bare = Program(0, 1, self.digest, 1, 0, 1, ProgramFlag(0), (), (), ())
        self.instructions["flags"][sorted(instructions)] = Flag.SCALE
        self.header["digest"] = scaled(bare, ()).digest
