"""Certificates: what was proved of the built-in algorithms when this version was made.

``python -m pycoll.verify.certify`` makes ``certificates.json``. A certificate is tied by digest
to the text of every file between an algorithm and its Programs, and of those that move a Program
from a representative to another rank; an edit voids it, and the gate proves anew until the
certificates are made again.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pycoll.algorithms import BUILTIN, Algorithm
from pycoll.program.lower import Facts

PACKAGE = Path(__file__).parents[1]
FILE = Path(__file__).with_name("certificates.json")
PIPELINE = (
    "algorithms/*.py",
    "schedule/*.py",
    "passes/*.py",
    "program/image.py",
    "program/isa.py",
    "program/lower.py",
    "program/program.py",
    "verify/symmetry/*.py",
)
PROVER = ("verify/*.py",)  #: besides: what else a record that is kept on disk depends on


class Form(NamedTuple):
    """One of the Programs that an algorithm lowers to."""

    direct: bool
    average: bool

    def __str__(self) -> str:
        return ("direct" if self.direct else "staged") + (" average" if self.average else "")


FORMS = tuple(Form(direct, average) for direct in (False, True) for average in (False, True))


def forms(algorithm: Algorithm) -> tuple[Form, ...]:
    """Return the forms that an algorithm can have: averages only where it folds."""
    return tuple(f for f in FORMS if algorithm.collective.reduces or not f.average)


@cache
def source_digest(patterns: tuple[str, ...] = PIPELINE) -> str:
    """Return a digest of the package's files that match, or "" where there is no source."""
    state = hashlib.sha256()
    for pattern in patterns:
        paths = sorted(PACKAGE.glob(pattern))
        if not paths:
            return ""
        for path in paths:
            state.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return state.hexdigest()


def digest(algorithm: Algorithm) -> str:
    """Return what a built-in's certificate must name: its source is among the pipeline's."""
    text = f"{algorithm.collective.name} {algorithm.name} {source_digest()}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def certificates() -> dict[str, dict[str, Any]]:
    """Return the certificates by collective and name; none if the file is not there."""
    if not FILE.exists():
        return {}
    table: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return table


class Certificate(NamedTuple):
    """That a form was proved at a number of ranks, and what all ranks need to know of it."""

    facts: Facts
    asks: bool  #: it looks at the placement, and was proved for a flat one


def certified(algorithm: Algorithm, size: int, slots: int, form: Form) -> Certificate | None:
    """Return what covers this; a user's algorithm has no certificate, whatever its name."""
    match entry_of(algorithm):
        case {"slots": int(least), "asks": bool(asks), "forms": {**forms}, "facts": list(runs)}:
            if slots < least or not _covers(forms.get(str(form)), size):
                return None
            for low, high, widest, fused, edges in runs:
                if low <= size <= high:
                    return Certificate(Facts(widest, fused, edges), asks)
    return None


def certified_without_direct(algorithm: Algorithm, size: int, slots: int) -> bool:
    """Tell whether it is certain that there is no direct form for a flat placement."""
    staged, direct = (certified(algorithm, size, slots, Form(d, False)) for d in (False, True))
    return staged is not None and direct is None


def entry_of(algorithm: Algorithm) -> dict[str, Any] | None:
    """Return the certificate of a built-in, if it is of this source."""
    if algorithm not in BUILTIN or not source_digest():
        return None
    found = certificates().get(f"{algorithm.collective.name}/{algorithm.name}")
    return found if found is not None and found.get("digest") == digest(algorithm) else None


def _covers(spans: object, size: int) -> bool:
    return isinstance(spans, list) and any(low <= size <= high for low, high in spans)
