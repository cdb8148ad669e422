"""Certificates beyond the sizes that follow each other: records of the sizes that people run.

Where ranks do the same up to a group, a row has the digest of each class, which every rank compares
with its own Program. Elsewhere it is tied to the source alone, as the digests of all ranks would
fill the tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycoll.schedule import Algorithm
from pycoll.verify.certificates import entry_of
from pycoll.verify.record import Record
from pycoll.verify.verdict import Verdict

#: What clusters have: whole nodes of eight, then what is common.
SIZES = (*range(72, 257, 8), 384, 512, 768, 1024, 2048, 4096)


def certified_beyond(
    algorithm: Algorithm, size: int, slots: int, average: bool, flat: bool
) -> Record | None:
    """Return the record of a staged form; None where there is none."""
    entry = entry_of(algorithm)
    if entry is None or (entry["asks"] and not flat):
        return None
    known = entry["beyond"]
    row = known["average" if average else "sum"].get(str(size))
    if row is None or slots < known["slots"]:
        return None
    return Record.from_row(Verdict(algorithm.name, size, slots, (), 0, 0.0, "certificate"), row)


def row_of(record: Record) -> list[Any]:
    """Return what a certificate says of a record."""
    tied = record if record.group is not None else replace(record, digests=b"")
    return tied.to_row()
