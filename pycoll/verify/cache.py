"""A cache of proofs on disk, so that a user's algorithm is proved once per change.

A proof is found by what was proved: the digest of the schedule of all ranks, the form, and the
text of the pipeline and of the prover. The source of the algorithm would not do, as a function
may depend on more than its text.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from pycoll import files
from pycoll.schedule import COLLECTIVES, Schedule
from pycoll.verify.certificates import PIPELINE, PROVER, Form, source_digest
from pycoll.verify.prove import Verdict


def key(schedule: Schedule, slots: int, form: Form) -> str:
    """Return the name of a proof, or "" where a proof cannot be tied to this version."""
    text = source_digest(PIPELINE + PROVER)
    # The rules of a collective of one's own have no text to tell them by, only a name.
    if not text or COLLECTIVES.get(schedule.collective.name) is not schedule.collective:
        return ""
    what = f"{text} {schedule.collective.name} {schedule.digest} {schedule.size} {slots} {form}"
    return hashlib.sha256(what.encode()).hexdigest()


def load(directory: Path, key: str) -> Verdict | None:
    """Return the proof called ``key``; None if it is not there or cannot be read."""
    try:
        entry = files.read_json(directory / f"{key}.json")
        fields = entry["verdict"]
        if entry["key"] != key or entry["check"] != _check(key, fields):
            return None
        return replace(Verdict(**{**fields, "tiles": tuple(fields["tiles"])}), origin="cache")
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store(directory: Path, key: str, verdict: Verdict) -> None:
    """Keep a proof. Where that cannot be written the run goes on: it will be proved again."""
    fields = asdict(verdict)
    text = json.dumps({"key": key, "check": _check(key, fields), "verdict": fields})
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
