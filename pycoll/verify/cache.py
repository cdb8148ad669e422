"""Records on disk, so that an algorithm is proved once per change, and not once per job.

A record is found by what was proved, the form, and the text of the pipeline, of all built-ins and
of the prover. A built-in is told by its source, which is part of that text. Of a user's algorithm
the source would not do, as a function may depend on more than its text: it is told by the digest of
the schedule of all ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from pycoll import files
from pycoll.algorithms import BUILTIN
from pycoll.program.lower import identity
from pycoll.schedule import COLLECTIVES, Algorithm, Placement, schedule
from pycoll.verify.certificates import Form
from pycoll.verify.record import Record
from pycoll.verify.sources import PIPELINE, source_digest

SOURCES = (*PIPELINE, "algorithms/*.py", "verify/*.py")  #: what a record depends on


def key(
    algorithm: Algorithm, size: int, slots: int, form: Form, placement: Placement | None
) -> str:
    """Return the name of a record, or "" where a proof cannot be tied to this version."""
    text, collective = source_digest(SOURCES), algorithm.collective
    # The rules of a collective of one's own have no text to tell them by, only a name.
    if not text or COLLECTIVES.get(collective.name) is not collective:
        return ""
    subject = str(identity(algorithm, size, placement))  # which every Program names
    if algorithm not in BUILTIN:
        subject += f" {schedule(algorithm, size, placement).digest}"
    what = f"{text} {collective.name} {subject} {size} {slots} {form}"
    return hashlib.sha256(what.encode()).hexdigest()


def load(directory: Path, key: str) -> Record | None:
    """Return the record called ``key``; None if it is not there or cannot be read."""
    try:
        entry = files.read_json(directory / f"{key}.json")
        fields = entry["record"]
        if entry["key"] != key or entry["check"] != _check(key, fields):
            return None
        return Record.from_json(fields, origin="cache")
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store(directory: Path, key: str, record: Record) -> None:
    """Keep a record. Where that cannot be written the run goes on: it will be proved again."""
    fields = record.to_json()
    text = json.dumps({"key": key, "check": _check(key, fields), "record": fields})
    temporary = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Several jobs may prove the same; each writes a file of its own and renames it.
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, directory / f"{key}.json")
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _check(key: str, fields: dict[str, object]) -> str:
    text = key + json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
