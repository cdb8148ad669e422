"""Text: a snapshot as lines, as wide as there is room for."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pycoll.errors import counted
from pycoll.top.view import Group, Row, Snapshot

_BOLD, _ALERT, _DIM, _PLAIN = "\033[1m", "\033[1;31m", "\033[2m", "\033[0m"


class Line(NamedTuple):
    """A line, and how it stands out where there are colours."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """What a table shows of each rank."""

    title: str
    cell: Callable[[Row], str]
    left: bool = False
    drop: int = 0  #: where there is no room, those with the highest number go first; 0: none


def _doing(row: Row) -> str:
    if row.state in ("closed", "gone") or not row.number:
        return row.state
    what = " ".join(filter(None, (row.call, size(row.nbytes) if row.nbytes else "")))
    more = ", ".join(filter(None, (row.dtype, row.op, row.algorithm)))
    text = f"{what} ({more})" if more else what
    if row.state == "calling":
        return text
    return f"idle after {text}" if row.state == "idle" else f"{row.state}; last {text}"


def _last_wait(row: Row) -> str:
    if row.last_wait_for is None or row.last_wait_seconds is None:
        return "-"
    return f"rank {row.last_wait_for}, {duration(row.last_wait_seconds)}"


def _rails(row: Row) -> str:
    return ", ".join(f"{name} {rate(value)}" for name, value in row.rails.items()) or "-"


def _share(row: Row) -> str:
    return "-" if row.waiting is None else f"{100 * row.waiting:.0f} %"


def _mark(row: Row) -> str:
    return ">" if row.awaited else " "


COLUMNS = (
    Column("", _mark),
    Column("rank", lambda row: str(row.rank)),
    Column("pid", lambda row: str(row.pid), drop=4),
    Column("host", lambda row: row.host, left=True, drop=9),
    Column("device", lambda row: row.device, left=True, drop=7),
    Column("call", lambda row: str(row.number), drop=2),
    Column("behind", lambda row: str(row.behind) if row.behind else "-", drop=3),
    Column("doing", _doing, left=True),
    Column("since", lambda row: duration(row.seconds), drop=1),
    Column("calls/s", lambda row: number(row.calls_per_s), drop=5),
    Column("bytes/s", lambda row: rate(row.bytes_per_s), drop=6),
    Column("busbw", lambda row: rate(row.bus_bytes_per_s), drop=8),
    Column("waiting", _share, drop=6),
    Column("last long wait", _last_wait, left=True, drop=7),
    Column("rails", _rails, left=True, drop=8),
)


def lines(snapshot: Snapshot, width: int | None = None) -> list[Line]:
    """Return what is shown of a snapshot.

    Args:
        snapshot: What is shown.
        width: Cells of a line; None: as many as it takes.
    """
    groups = snapshot.communicators
    jobs = len({group.job for group in groups})
    pids = {row.pid for group in groups for row in group.ranks if row.state != "gone"}
    head = f"pycoll top: {snapshot.host}: "
    many = f"{counted(jobs, 'job')}, {len(pids)} process{'es' * (len(pids) != 1)}"
    found = [
        Line(head + (many if groups else "no job of pycoll that can be seen runs here"), _BOLD)
    ]
    for group in groups:
        found += [Line(""), Line(_title(group), _BOLD), *_waits(group), *_table(group.ranks, width)]
    found += [Line(""), *(Line(text, _DIM) for text in _notes(snapshot))]
    while not found[-1].text:
        found.pop()
    return found if width is None else [Line(cut(text, width), style) for text, style in found]


def coloured(line: Line) -> str:
    """Return a line with what makes a terminal show it so."""
    return f"{line.style}{line.text}{_PLAIN}" if line.style else line.text


def _title(group: Group) -> str:
    here = (
        f"{group.here} of {counted(group.size, 'rank')} {'is' if group.here == 1 else 'are'} here"
    )
    where = "" if group.name == "job" else f", {group.name}"
    return f"job {group.job}{where}: {here}, call {group.newest}"


def _waits(group: Group) -> list[Line]:
    if not group.waits_for:
        return []
    present = {row.rank for row in group.ranks}
    named = [f"{r}{'' if r in present else ' (elsewhere)'}" for r in group.waits_for]
    return [Line(f"the others wait for rank{'s' * (len(named) > 1)} {', '.join(named)}", _ALERT)]


def _notes(snapshot: Snapshot) -> list[str]:
    notes = []
    if snapshot.passed_over:
        what = "process" if snapshot.passed_over == 1 else "processes"
        notes.append(f"{snapshot.passed_over} {what} may not be looked into: other users', mostly")
    if snapshot.unreadable:
        what = counted(snapshot.unreadable, "memory file")
        notes.append(f"{what} of another version of pycoll, or of no rank, or just begun")
    return notes


def _table(rows: Sequence[Row], width: int | None) -> list[Line]:
    bare = {"rails": not any(row.rails for row in rows)}
    bare["device"] = all(row.device == "cpu" for row in rows)
    columns = [column for column in COLUMNS if not bare.get(column.title)]
    cells = {column.title: [column.cell(row) for row in rows] for column in columns}
    widths = {
        title: max(cells_of(text) for text in (title, *texts)) for title, texts in cells.items()
    }
    while width is not None and sum(widths[c.title] + 2 for c in columns) - 2 > width:
        droppable = max(columns, key=lambda column: column.drop)
        if not droppable.drop:
            break
        columns.remove(droppable)
    made = [Line(_joined(columns, widths, [column.title for column in columns]), _DIM)]
    for at, row in enumerate(rows):
        text = _joined(columns, widths, [cells[column.title][at] for column in columns])
        style = _ALERT if row.awaited else _DIM if row.state in ("gone", "closed") else ""
        made.append(Line(text, style))
    return made


def _joined(columns: Sequence[Column], widths: dict[str, int], texts: Sequence[str]) -> str:
    parts = []
    for column, text in zip(columns, texts, strict=True):
        blank = " " * (widths[column.title] - cells_of(text))
        parts.append(text + blank if column.left else blank + text)
    return "  ".join(parts).rstrip()


def cells_of(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    return sum(_cells(c) for c in text)


def cut(text: str, width: int) -> str:
    """Return what of a text fits into so many cells."""
    if cells_of(text) <= width:
        return text
    used, kept = 0, []
    for c in text:
        used += _cells(c)
        if used > width:
            break
        kept.append(c)
    return "".join(kept)


def _cells(c: str) -> int:
    if unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def number(value: float | None) -> str:
    """Return a count per second."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def size(nbytes: float) -> str:
    """Return bytes in the unit that leaves at most four digits, by powers of 1024."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} PiB"


def rate(value: float | None) -> str:
    """Return bytes per second, by powers of 1000 as networks have them."""
    if value is None:
        return "-"
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB/s"


def duration(seconds: float | None) -> str:
    """Return a time in a unit that suits it."""
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
