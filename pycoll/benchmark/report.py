"""What came of a benchmark: rows of the JSON, and the same as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycoll.benchmark.overlap import Overlap
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case, Timing

Row = dict[str, Any]

#: Times in the table. The first is the median of the repeats, which bandwidths are of, the others
#: are over single calls; the JSON has more.
_TIMES = (("median", "time"), ("p50", "p50"), ("p99", "p99"), ("max", "max"))
_HEAD = (
    f"#{'size':>11} {'count':>10} {'type':>13} {'op':>4}  {'library':<17} {'algorithm':<18} "
    + " ".join(f"{title:>9}" for _, title in _TIMES)
    + f" {'algbw':>8} {'busbw':>8}"
)
_UNITS = (
    f"#{'(B)':>11} {'':>10} {'':>13} {'':>4}  {'':<17} {'':<18} "
    + " ".join(f"{'(us)':>9}" for _ in _TIMES)
    + f" {'(GB/s)':>8} {'(GB/s)':>8}"
)
#: Columns that only some rows have: where they stand in the row, their titles and units.
_EXTRA = {
    "rate": ((("rate_Mps",), "messages", "(M/s)"),),
    "overlap": (
        (("overlap", "overall_us"), "overall", "(us)"),
        (("overlap", "compute_us"), "compute", "(us)"),
        (("overlap", "pure_us"), "pure", "(us)"),
        (("overlap", "percent"), "overlap", "(%)"),
    ),
}


def row(case: Case, timing: Timing, problem: Problem, overlap: Overlap | None = None) -> Row:
    """Return one row of the JSON. Bandwidths are of the median, with busbw as nccl-tests has it.

    Args:
        case: What was timed.
        timing: What came of it.
        problem: What was done.
        overlap: What was measured with computation beside it.
    """
    operation = problem.operation
    algbw = problem.nbytes * problem.window / timing.median / 1e3
    found = {
        "library": case.library,
        "collective": operation.name,
        "ranks": problem.size,
        "dtype": str(case.x.dtype) if operation.sized else "-",
        "op": problem.op.name.lower() if operation.reduces else "-",
        "nbytes": problem.nbytes,
        "count": problem.count,
        "algorithm": case.algorithm,
        "transport": case.transport,
        "arrays": case.arrays,
        "call": case.call,
        "in_place": case.in_place,
        "calls": int(timing.calls.size),
        "time_us": {
            "min": round(timing.low, 4),
            "median": round(timing.median, 4),
            "p50": _rounded(timing.percentile(50)),
            "p99": _rounded(timing.percentile(99)),
            "max": _rounded(timing.slowest),
        },
        "algbw_GBps": round(algbw, 4),
        "busbw_GBps": round(algbw * operation.crossings(problem.size), 4),
        "wrong": timing.wrong + (overlap.wrong if overlap else 0),
    }
    if operation.rooted:
        found["root"] = problem.root
    if operation.windowed:
        messages = problem.window * operation.crossings(problem.size)
        found |= {"window": problem.window, "rate_Mps": round(messages / timing.median, 4)}
    if overlap is not None:
        found["overlap"] = {
            "overall_us": round(overlap.overall, 4),
            "compute_us": round(overlap.compute, 4),
            "pure_us": round(overlap.pure, 4),
            "percent": round(overlap.percent, 1),
        }
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def label(row: Row) -> str:
    """Return the library's name with what tells its rows apart: ``pycoll plan empty``."""
    extra = [row["call"]] if row["call"] != "call" else []
    extra += [row["arrays"]] if row["arrays"] != "numpy" else []
    return " ".join([row["library"], *extra])


def head(meta: dict[str, Any], collective: str, in_place: bool, extra: str = "") -> str:
    """Return what stands above the table's first row.

    Args:
        meta: Who measured.
        collective: What is timed.
        in_place: Whether input and output are one memory.
        extra: "rate" or "overlap": what the rows have besides.
    """
    machine = meta["machine"]
    place = "in place" if in_place else "out of place"
    between = "" if meta["transport"] == "shm" else f", {meta['transport']} between hosts"
    notes = [f"# warning: {text}" for text in meta["warnings"]]
    more = _EXTRA.get(extra, ())
    titles = "".join(f" {title:>9}" for _, title, _ in more) + f" {'wrong':>5}"
    units = "".join(f" {unit:>9}" for _, _, unit in more) + f" {'':>5}"
    return "\n".join(
        [
            f"# pycoll bench {collective}: {meta['ranks']} ranks, {place}, launched by "
            f"{meta['launcher']}{between}, {machine['cores']} cores of {machine['cpu']}",
            *notes,
            _HEAD + titles,
            _UNITS + units,
        ]
    )


def line(row: Row) -> str:
    """Return one row of the table."""
    t = row["time_us"]
    times = " ".join(_number(t[key]) for key, _ in _TIMES)
    extra = "".join(
        f" {_number(_at(row, place))}"
        for columns in _EXTRA.values()
        for place, _, _ in columns
        if place[0] in row
    )
    return (
        f"{row['nbytes']:>12} {row['count']:>10} {row['dtype']:>13} {row['op']:>4}  "
        f"{label(row):<17} {row['algorithm']:<18} {times} "
        f"{row['algbw_GBps']:>8.2f} {row['busbw_GBps']:>8.2f}{extra} {row['wrong']:>5}"
    )


def _at(row: Row, place: Sequence[str]) -> float:
    value: Any = row
    for key in place:
        value = value[key]
    return float(value)


def _number(value: float | None) -> str:
    """Return a cell of the table; a dash for what so few calls do not have."""
    return f"{'-':>9}" if value is None else f"{value:>9.2f}"


def nbytes(number: int) -> str:
    """Return a size as the command line takes it: 8, 4K, 256M."""
    for suffix, shift in (("G", 30), ("M", 20), ("K", 10)):
        if number >= 1 << shift and not number % (1 << shift):
            return f"{number >> shift}{suffix}"
    return str(number)
