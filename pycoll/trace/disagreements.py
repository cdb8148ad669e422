"""Disagreements: ranks that made another call than the others at the same number.

Messages between two ranks are not compared. Nor are the bytes of calls in which ranks rightly give
different numbers of them, nor devices. Of a call that was refused only its text is known: what it
says is compared, and the rest fits anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pycoll.dtypes import BY_NAME, OPS
from pycoll.errors import counted
from pycoll.trace.calls import Communicator
from pycoll.trace.finding import Finding
from pycoll.trace.record import Event
from pycoll.trace.words import named

_UNEQUAL = {"gather", "scatter"}  #: besides those that end with v, and objects


class Asked(NamedTuple):
    """What is compared; None: not known, or not alike on all ranks."""

    call: str
    algorithm: str | None
    nbytes: int | None
    dtype: str | None
    op: str | None
    line: str | None


def asked(event: Event) -> Asked:
    """Return what a rank asked for."""
    kind, line = event.kind, _line(event.line)
    if event.algorithm or event.call == kind:
        nbytes = None if _unequal(kind) else event.nbytes
        return Asked(kind, event.algorithm or None, nbytes, event.dtype, event.op, line)
    words = [word.strip() for word in event.call.partition("(")[2].rstrip(")").split(",")]
    dtype = next((word for word in words if word in BY_NAME), None)
    op = next((word for word in words if word in OPS), None)
    elements = re.search(r"\b(\d+) elements?\b", event.call)
    known = elements is not None and dtype is not None and not _unequal(kind)
    nbytes = int(elements[1]) * BY_NAME[dtype].itemsize if known and elements and dtype else None
    return Asked(kind, None, nbytes, dtype, op, line)


def _unequal(kind: str) -> bool:
    return kind in _UNEQUAL or kind.endswith("v") or "object" in kind


def _line(line: str | None) -> str | None:
    """Return the file's name and the number: folders differ between hosts."""
    return None if line is None else line.rpartition("/")[2]


class Group(NamedTuple):
    """Ranks that asked alike."""

    asked: Asked
    ranks: tuple[int, ...]


def groups(events: dict[int, Event]) -> list[Group]:
    """Return who asked alike, the most ranks first; one group if nobody disagrees."""
    exact: dict[Asked, list[int]] = {}
    for rank, event in events.items():
        exact.setdefault(asked(event), []).append(rank)
    if len(exact) == 1:
        ((one, ranks),) = exact.items()
        return [Group(one, tuple(ranks))]
    merged: list[tuple[Asked, list[int]]] = []
    # Those of whom most is known come first, so that the rest joins them.
    for one, ranks in sorted(exact.items(), key=lambda item: (item[0].count(None), -len(item[1]))):
        fitting = [i for i, (other, _) in enumerate(merged) if not differ(one, other)]
        if fitting:
            best = max(fitting, key=lambda i: len(merged[i][1]))
            merged[best][1].extend(ranks)
        else:
            merged.append((one, list(ranks)))
    found = [Group(one, tuple(sorted(ranks))) for one, ranks in merged]
    return sorted(found, key=lambda group: (-len(group.ranks), group.ranks))


def differ(a: Asked, b: Asked) -> tuple[str, ...]:
    """Return the names of what differs."""
    pairs = zip(Asked._fields, a, b, strict=True)
    found = tuple(name for name, x, y in pairs if None not in (x, y) and x != y)
    return ("call",) if "call" in found else found


def findings(comm: Communicator) -> list[Finding]:
    """Name who disagreed: whoever is not of the majority, or all where there is none."""
    alike: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], list[Group]] = {}
    for seq, events in comm.calls.items():
        found = groups(events)
        if len(found) > 1:
            names = _names(found)
            values = tuple(_shown(group.asked, names) for group in found)
            key = tuple(group.ranks for group in found), names, values
            first.setdefault(key, found)
            alike.setdefault(key, []).append(seq)
    return [_finding(comm, seqs, first[key]) for key, seqs in alike.items()]


def _names(found: Sequence[Group]) -> tuple[str, ...]:
    """Return what differs between any groups, in order."""
    names = {n for a in found for b in found for n in differ(a.asked, b.asked)}
    return ("call",) if "call" in names else tuple(n for n in Asked._fields if n in names)


def _shown(one: Asked, names: tuple[str, ...]) -> str:
    words = []
    for name in names:
        value = getattr(one, name)
        shown = "unknown" if value is None else value or "none"
        words.append(f"{shown}" if name == "call" else f"{name} {shown}")
    return ", ".join(words)


def _finding(comm: Communicator, seqs: list[int], found: list[Group]) -> Finding:
    names, total = _names(found), sum(len(group.ranks) for group in found)
    majority = found[0] if 2 * len(found[0].ranks) > total else None
    minority = [group for group in found if group is not majority]
    events = comm.calls[seqs[0]]
    ranks = tuple(sorted(rank for group in minority for rank in group.ranks))
    said = [f"{named(g.ranks)} {_did(g, names, events)}" for g in minority]
    if majority:
        what = f"the other {len(majority.ranks)} {_did(majority, names, events)}"
        said.append(what if len(majority.ranks) > 1 else f"the other {what}")
    more = f" (and {counted(len(seqs) - 1, 'call')} more like it)" if len(seqs) > 1 else ""
    text = f"ranks disagree in call {seqs[0]} of {comm.name}{more}: {'; '.join(said)}"
    if names == ("line",):
        text += "\nthe calls are alike otherwise"
    return Finding(
        "disagreement",
        ranks,
        text,
        {
            "comm": comm.id,
            "seqs": seqs,
            "fields": list(names),
            "majority": list(majority.ranks) if majority else None,
            "groups": [
                {
                    "ranks": list(group.ranks),
                    **group.asked._asdict(),
                    "errors": sorted({events[rank].error for rank in group.ranks} - {""}),
                }
                for group in found
            ],
        },
    )


def _did(group: Group, names: tuple[str, ...], events: dict[int, Event]) -> str:
    event = events[group.ranks[0]]
    call = event.call if event.algorithm == "" else event.kind
    shown = call if names == ("call",) else f"{call} with {_shown(group.asked, names)}"
    at = f" at {event.line}" if event.line else ""
    ends = sorted({events[rank].error for rank in group.ranks} - {""})
    unfinished = any(events[rank].finished_ns is None for rank in group.ranks)
    end = f", which ended in {' or '.join(ends)}" if ends else ""
    return f"called {shown}{at}{end}{', which has not finished' if unfinished else ''}"
