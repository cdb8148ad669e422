"""Certificates: what was proved of the built-in algorithms when this version was made.

``python -m pycoll.verify.certify`` makes ``certificates.json``. A certificate is tied by digest
to the text of every file between an algorithm and its Programs, and of those that move a Program
from a representative to another rank; an edit voids it, and the gate proves anew until the
certificate is made again. Of the built-ins' files it names those that the algorithm depends on:
while their text is what it was, so is what they import, and nobody has to look.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pycoll.algorithms import BUILTIN, Algorithm
from pycoll.program.lower import Facts
from pycoll.verify.sources import defining, source_digest

FILE = Path(__file__).with_name("certificates.json")


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


def digest(algorithm: Algorithm, files: tuple[str, ...]) -> str:
    """Return what a certificate must name; "" where there is no such source.

    Args:
        algorithm: What it is of.
        files: Those of the built-ins that it depended on when it was proved, see `files_of`.
    """
    pipeline, own, first = source_digest(), source_digest(files), defining(algorithm)
    if not (pipeline and own) or (first and first not in files):
        return ""
    text = f"{algorithm.collective.name} {algorithm.name} {pipeline} {first} {own}"
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
    if algorithm not in BUILTIN:
        return None
    match certificates().get(f"{algorithm.collective.name}/{algorithm.name}"):
        case {"digest": str(of), "files": list(files)} as found:
            return found if of and of == digest(algorithm, tuple(files)) else None
    return None


def read() -> None:
    """Read the certificates and the source, for the processes that are forked of this one."""
    for algorithm in BUILTIN:
        entry_of(algorithm)


def _covers(spans: object, size: int) -> bool:
    return isinstance(spans, list) and any(low <= size <= high for low, high in spans)
