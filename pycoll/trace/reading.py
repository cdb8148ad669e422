"""Reading: a record file, of which every field is checked before anything else looks at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycoll.errors import UsageError, quoted
from pycoll.files import read
from pycoll.trace.record import FORMAT, Clock, Comm, Event, Link, Record

#: Of numbers: what a clock of 64 bits, or a count of bytes, can be.
_MOST = 1 << 63

_Check = tuple[str, Callable[[Any], bool], str]


def _text(value: Any) -> bool:
    return type(value) is str


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _integer(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(check, value))


_NATURAL = "a whole number of at least 0"
_LIST = "a list"
_EVENT: tuple[_Check, ...] = (
    ("seq", _natural, _NATURAL),
    ("call", _text, "text"),
    ("algorithm", _text, "text"),
    ("nbytes", _natural, _NATURAL),
    ("dtype", _text, "text"),
    ("op", _text, "text"),
    ("device", _text, "text"),
    ("line", _or_none(_text), "text or null"),
    ("entered_ns", _or_none(_natural), f"{_NATURAL}, or null"),
    ("finished_ns", _or_none(_natural), f"{_NATURAL}, or null"),
    ("waited_ns", _natural, _NATURAL),
    ("waits", _natural, _NATURAL),
    ("peer", _or_none(_natural), "a rank of the communicator, or null"),
    ("error", _text, "text"),
    ("sent", _list_of(_natural), "a list of numbers of bytes"),
)
_LINK: tuple[_Check, ...] = tuple((name, _natural, _NATURAL) for name in Link._fields)
_COMM: tuple[_Check, ...] = (
    ("name", _text, "text"),
    ("id", _text, "text"),
    ("rank", _natural, _NATURAL),
    ("ranks", _list_of(_natural), "a list of ranks of the job"),
    ("hosts", _list_of(_natural), "a list of numbers of hosts"),
    ("transport", _text, "text"),
    ("rails", _list_of(_text), "a list of names"),
    ("events", _list_of(lambda value: True), _LIST),
    ("links", _list_of(lambda value: True), _LIST),
)
_CLOCK: tuple[_Check, ...] = (
    ("monotonic_ns", _natural, _NATURAL),
    ("unix_ns", _natural, _NATURAL),
    ("reference", _or_none(_natural), f"{_NATURAL}, or null"),
    ("offset_ns", _or_none(_integer), "a whole number, or null"),
    ("error_ns", _or_none(_natural), f"{_NATURAL}, or null"),
)
_RECORD: tuple[_Check, ...] = (
    ("job", _text, "text"),
    ("reason", _text, "text"),
    ("host", _text, "text"),
    ("pid", _natural, _NATURAL),
    ("rank", _natural, _NATURAL),
    ("size", _natural, _NATURAL),
    ("clock", lambda value: type(value) is dict, "an object"),
    ("comms", _list_of(lambda value: True), _LIST),
)


def read_record(path: Path) -> Record:
    """Return what a file says.

    Raises:
        UsageError: It cannot be read, is no record of this format, or a field of it is wrong; the
            text says which and what is wanted, and does not name the file.
    """
    try:
        text = read(path).decode()
    except OSError as error:
        raise UsageError(
            f"it cannot be read: {error.strerror or error}; want a record file ({FORMAT})"
        ) from error
    except UnicodeDecodeError:
        raise UsageError(f"it is no text; want a record file ({FORMAT})") from None
    return _record(path, _value(text))


def _value(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UsageError(f"it is empty; want a record file ({FORMAT})")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        started, ended = text.lstrip().startswith("{"), text.rstrip().endswith("}")
        if started and not ended:
            raise UsageError(
                f"it ends in the middle, after {len(text)} characters; want the whole file"
            ) from None
        raise UsageError(f"it is no JSON ({error}); want a record file ({FORMAT})") from None
    if type(value) is not dict or "format" not in value:
        raise UsageError(f"it has no 'format'; want a record file ({FORMAT})")
    if value["format"] != FORMAT:
        raise UsageError(f"format is {quoted(value['format'])}, want {FORMAT!r}")
    return value


def _record(path: Path, value: dict[str, Any]) -> Record:
    f = _fields(_RECORD, value, "")
    if not f["rank"] < f["size"]:
        raise UsageError(f"rank is {f['rank']}, want less than size, which is {f['size']}")
    clock = Clock(**_fields(_CLOCK, f["clock"], "clock"))
    aligned = clock.reference, clock.offset_ns, clock.error_ns
    if None in aligned and any(one is not None for one in aligned):
        raise UsageError(
            "clock has some of reference, offset_ns and error_ns; want all, or all null"
        )
    _below("clock.reference", clock.reference, f["size"], "ranks of the job")
    comms = tuple(_comm(item, f"comms[{i}]", f) for i, item in enumerate(f["comms"]))
    ids = [comm.id for comm in comms]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise UsageError(f"two of comms have the id {quoted(min(twice))}; want each once")
    return Record(path=path, **{**f, "clock": clock, "comms": comms})


def _comm(value: Any, where: str, record: dict[str, Any]) -> Comm:
    f = _fields(_COMM, value, where)
    size = len(f["ranks"])
    if len(set(f["ranks"])) != size or not all(rank < record["size"] for rank in f["ranks"]):
        raise UsageError(
            f"{where}.ranks is {quoted(f['ranks'])}, want each once, and less than "
            f"{record['size']}, the size of the job"
        )
    if len(f["hosts"]) != size:
        raise UsageError(f"{where}.hosts has {len(f['hosts'])} numbers, want {size} as in ranks")
    if f["rank"] >= size or f["ranks"][f["rank"]] != record["rank"]:
        raise UsageError(
            f"{where}.rank is {f['rank']}, want where {record['rank']}, the rank of the job, "
            "stands in ranks"
        )
    rails = max(1, len(f["rails"]))
    events = [_event(e, f"{where}.events[{i}]", size, rails) for i, e in enumerate(f["events"])]
    links = [_link(e, f"{where}.links[{i}]", size, rails) for i, e in enumerate(f["links"])]
    seqs = [event.seq for event in events if not event.transfer]
    if len(set(seqs)) != len(seqs):
        twice = next(seq for seq in seqs if seqs.count(seq) > 1)
        raise UsageError(f"{where}.events has two calls with seq {twice}, want each once")
    return Comm(
        **{
            **f,
            "ranks": tuple(f["ranks"]),
            "hosts": tuple(f["hosts"]),
            "rails": tuple(f["rails"]),
            "events": tuple(events),
            "links": tuple(links),
        }
    )


def _event(value: Any, where: str, size: int, rails: int) -> Event:
    f = _fields(_EVENT, value, where)
    f["sent"] = tuple(f["sent"])
    event = Event(**f)
    if event.entered_ns is None and event.finished_ns is None:
        raise UsageError(f"{where} has neither entered_ns nor finished_ns, want one at least")
    if None not in (event.entered_ns, event.finished_ns) and f["finished_ns"] < f["entered_ns"]:
        raise UsageError(
            f"{where}.finished_ns is {event.finished_ns}, want at least entered_ns, "
            f"{event.entered_ns}"
        )
    _below(f"{where}.peer", event.peer, size, "ranks")
    if len(event.sent) > rails:
        raise UsageError(f"{where}.sent has {len(event.sent)} numbers, want at most {rails}")
    return event


def _link(value: Any, where: str, size: int, rails: int) -> Link:
    link = Link(**_fields(_LINK, value, where))
    _below(f"{where}.peer", link.peer, size, "ranks")
    _below(f"{where}.rail", link.rail, rails, "rails")
    return link


def _below(where: str, number: int | None, end: int, what: str) -> None:
    if number is not None and number >= end:
        raise UsageError(f"{where} is {number}, want less than {end}, the number of {what}")


def _fields(checks: tuple[_Check, ...], value: Any, where: str) -> dict[str, Any]:
    """Return the known fields of an object; others are of a later version, and left alone."""
    if type(value) is not dict:
        raise UsageError(f"{where} is {quoted(value)}, want an object")
    found = {}
    for name, check, want in checks:
        if name not in value:
            raise UsageError(f"{where or 'the record'} lacks {name!r}, want {want}")
        item = found[name] = value[name]
        if not check(item):
            path = f"{where}.{name}" if where else name
            raise UsageError(f"{path} is {quoted(item)}, want {want}")
    return found
