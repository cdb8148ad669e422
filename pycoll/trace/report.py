"""Report: an analysis as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from pycoll.errors import counted
from pycoll.trace.analysis import Analysis, calls
from pycoll.trace.job import described
from pycoll.trace.lateness import Lateness
from pycoll.trace.words import amount, duration, named, numbers, rate

#: Rows of a table that are printed at most; --json has all.
ROWS = 16


def report(found: Analysis) -> str:
    """Return the report: what is wrong first, then the tables."""
    lines = [*_head(found), ""]
    if not found.findings:
        lines.append("nothing stands out: nobody was late, no link is slow, ranks agree")
    for finding in found.findings:
        first, *rest = finding.text.splitlines()
        lines.append(f"{finding.kind}: {first}")
        lines += [f"    {line}" for line in rest]
    if found.seq is not None:
        lines += ["", *_calls(found)]
    for one in found.lateness:
        if one.standings and found.seq is None:
            lines += ["", *_lateness(one)]
    for rows in (_waits(found), _links(found), _kinds(found)):
        if made := list(rows):
            lines += ["", *made]
    return "\n".join(lines)


def _head(found: Analysis) -> Iterator[str]:
    names: dict[str, list[int]] = {}
    for rank, name in found.clocks.names.items():
        names.setdefault(name, []).append(rank)
    hosts = ", ".join(f"{name} ({numbers(ranks)})" for name, ranks in list(names.items())[:ROWS])
    yield f"{described(found.job)}, on {counted(len(names), 'host')}: {hosts}"
    for one in found.comms[:ROWS]:
        seqs = f", {min(one.calls)} to {max(one.calls)}" if len(one.calls) > 1 else ""
        who = f"{counted(one.size, 'rank')} ({numbers(one.ranks)})"
        yield f"communicator {one.name}: {who}; {counted(len(one.calls), 'call')}{seqs}"
    if len(found.comms) > ROWS:
        yield f"and {counted(len(found.comms) - ROWS, 'communicator')} more"
    if len(found.clocks.errors_ns) > 1:
        error = found.clocks.error_ns
        wrong = "not known of all hosts" if error is None else f"at most {duration(error)}"
        whose = f"rank {found.clocks.reference}'s clock"
        yield f"times are of {whose}; error of a host's {wrong}, none within a host"
    reasons: dict[str, list[int]] = {}
    for rank, record in sorted(found.job.records.items()):
        reasons.setdefault(record.reason.partition(":")[0], []).append(rank)
    for reason, ranks in reasons.items():
        yield f"written for {reason} by {named(ranks)}"
    for note in found.notes:
        yield f"note: {note}"


def _calls(found: Analysis) -> Iterator[str]:
    head = ("rank", "call", "came after", "took", "waited", "for", "bytes", "where and how")
    rows = []
    for row in calls(found):
        if row["call"] is None:
            rows.append((str(row["rank"]), "no such call", *[""] * 6))
            continue
        entered, finished = row["entered_ns"], row["finished_ns"]
        took = "not finished" if finished is None else "no time"
        if None not in (entered, finished):
            took = duration(finished - entered)
        rows.append(
            (
                str(row["rank"]),
                f"{row['call']} {row['algorithm']}".strip(),
                duration(row["arrived_after_ns"]),
                took,
                duration(row["waited_ns"]),
                "" if row["peer"] is None else f"rank {row['peer']}",
                amount(row["nbytes"]),
                " ".join(filter(None, (row["line"], row["error"]))),
            )
        )
    yield from _table(head, rows)


def _lateness(one: Lateness) -> Iterator[str]:
    yield f"arrivals at calls of {one.comm.name}; noise {duration(one.noise_ns)}"
    if one.apart:
        yield f"{named(one.apart)} not compared: their clocks were not aligned"
    head = ("rank", "came last", "late", "behind, median", "behind, sum", "others lost")
    order = sorted(one.standings, key=lambda s: (-len(s.late), -s.last, s.rank))
    rows = [
        (
            str(s.rank),
            f"{s.last} of {s.calls}",
            str(len(s.late)),
            duration(statistics.median(late.behind_ns for late in s.late)) if s.late else "-",
            duration(s.sum_ns) if s.late else "-",
            duration(s.lost_ns) if s.late else "-",
        )
        for s in order[:ROWS]
    ]
    yield from _table(head, rows)
    yield from _more(len(order))


def _waits(found: Analysis) -> Iterator[str]:
    total = sum(one.waited_ns for one in found.waits)
    if not total:
        return
    yield f"waits: {duration(total)} of all ranks, by whom the longest wait of each call was for"
    rows = [
        (
            str(one.rank),
            duration(one.waited_ns),
            f"{100 * one.waited_ns / total:.0f} %",
            str(one.calls),
            numbers(one.by),
        )
        for one in found.waits[:ROWS]
    ]
    yield from _table(("for rank", "waited", "share", "calls", "by ranks"), rows)
    yield from _more(len(found.waits))


def _links(found: Analysis) -> Iterator[str]:
    compared = [wire for wire in found.wires if wire.rate is not None]
    if not compared:
        return
    yield f"links between hosts: {len(compared)}, the slowest first"
    order = sorted(compared, key=lambda wire: (wire.like is None, wire.rate))
    rows = [
        (
            f"{wire.frm} to {wire.to}",
            wire.rail_name or str(wire.rail),
            amount(wire.sent),
            rate(wire.rate or 0.0),
            "too little to compare" if wire.like is None else rate(wire.like),
        )
        for wire in order[: ROWS // 2]
    ]
    yield from _table(("ranks", "rail", "sent", "rate", "others' median"), rows)
    yield from _more(len(order), ROWS // 2)


def _kinds(found: Analysis) -> Iterator[str]:
    if not found.kinds:
        return
    head = ("call", "algorithm", "calls", "bytes", "median", "p99", "busbw", "waiting")
    rows = [
        (
            row.call,
            row.algorithm,
            str(row.calls),
            amount(row.nbytes),
            "-" if row.median_ns is None else duration(row.median_ns),
            "-" if row.p99_ns is None else duration(row.p99_ns),
            "-" if row.busbw is None else rate(row.busbw),
            "-" if row.waiting is None else f"{100 * row.waiting:.0f} %",
        )
        for row in found.kinds[:ROWS]
    ]
    yield from _table(head, rows)
    yield from _more(len(found.kinds))


def _more(rows: int, printed: int = ROWS) -> Iterator[str]:
    if rows > printed:
        yield f"  and {rows - printed} more: --json has them"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
