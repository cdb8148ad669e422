"""Time against message size, one line per library, as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pycoll.benchmark.report import Row, label
from pycoll.errors import UnavailableError, UsageError


def require() -> Any:
    """Return matplotlib's Figure, or say how to get it; called before hours of measuring."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            f"--plot needs matplotlib, which does not load ({error}); pip install matplotlib"
        ) from error
    return Figure


def require_for(path: Path) -> None:
    """Check that a picture can be drawn into a file of this name.

    Raises:
        UnavailableError: matplotlib is missing.
        UsageError: The name's ending is none that it draws.
    """
    kinds = sorted(require()().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in kinds:
        raise UsageError(f"--plot is {path}, want a file that ends in one of {', '.join(kinds)}")


def plot(rows: Sequence[Row], path: Path, meta: dict[str, Any] | None = None) -> None:
    """Draw the rows' medians, and the busbw that they are, into the picture ``path``.

    Args:
        rows: Of one collective.
        path: Its ending says of what kind the picture is.
        meta: Who measured when on what machine, for the caption.
    """
    figure = require()(figsize=(13, 5.5), layout="constrained")
    times, widths = figure.subplots(1, 2)
    for name, points in _lines(rows).items():
        nbytes = sorted({row["nbytes"] for row in points})
        # A result may hold several launches of one size.
        launches = [[row for row in points if row["nbytes"] == size] for size in nbytes]
        each = [[row["time_us"] for row in found] for found in launches]
        times.plot(
            nbytes,
            [statistics.median(t["median"] for t in e) for e in each],
            marker="o",
            label=name,
        )
        low = [min(t["min"] for t in e) for e in each]
        times.fill_between(nbytes, low, [max(map(_high, e)) for e in each], alpha=0.15)
        busbw = [statistics.median(row["busbw_GBps"] for row in found) for found in launches]
        widths.plot(nbytes, busbw, marker="o", label=name)
    ticks = _ticks([row["nbytes"] for row in rows])
    for axes in (times, widths):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [size_name(size) for size in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("message")
        axes.grid(True, alpha=0.3)
        axes.legend()
    times.set_yscale("log")
    times.set_ylabel("time of the slowest rank (us)")
    widths.set_ylabel("busbw (GB/s)")
    figure.suptitle(_title(rows))
    if meta is not None:
        figure.supxlabel(caption(meta), fontsize="small")
    figure.savefig(path)


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each line by its name, which says as much as tells the lines apart."""
    parts: dict[str, Callable[[Row], str]] = {
        "library": label,
        "algorithm": lambda row: str(row["algorithm"]),
        "dtype": lambda row: str(row["dtype"]),
        "op": lambda row: str(row["op"]),
    }
    several = {"library"} | {
        part for part in ("dtype", "op") if len({row[part] for row in rows}) > 1
    }
    chosen: dict[tuple[Any, ...], set[str]] = {}
    for row in rows:
        key = label(row), row["nbytes"], row["dtype"], row["op"]
        chosen.setdefault(key, set()).add(row["algorithm"])
    taking_turns = {key[0] for key, algorithms in chosen.items() if len(algorithms) > 1}
    lines: dict[str, list[Row]] = {}
    for row in rows:
        shown = several | ({"algorithm"} if label(row) in taking_turns else set())
        name = " ".join(text(row) for part, text in parts.items() if part in shown)
        lines.setdefault(name, []).append(row)
    return lines


def _high(time: dict[str, float | None]) -> float:
    """Return where the shade ends: p99, or the slowest where so few calls have none."""
    known = (time.get(key) for key in ("p99", "max", "median"))
    return next(value for value in known if value is not None)


def _title(rows: Sequence[Row]) -> str:
    def one(key: str) -> str:
        found = list(dict.fromkeys(str(row[key]) for row in rows))
        return found[0] if len(found) == 1 and found[0] != "-" else ""

    first = rows[0]
    what = " ".join(filter(None, [first["collective"], one("op")]))
    return ", ".join(filter(None, [what, one("dtype"), f"{first['ranks']} ranks"]))


def caption(meta: dict[str, Any]) -> str:
    """Return in one line what the figures are of."""
    machine, versions = meta["machine"], meta["versions"]
    known = [f"{name} {version}" for name, version in versions.items() if name != "python"]
    parts = [f"{machine['cores']} cores of {machine['cpu']}", *known, meta["date"][:10]]
    return "; ".join([", ".join(parts), *meta.get("warnings", ())])


def size_name(nbytes: int) -> str:
    """Return a number of bytes as people say it: 8 B, 64 KiB, 1.5 MiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.3g} {unit}"
    return f"{nbytes} B"


def _ticks(sizes: Sequence[int]) -> list[int]:
    """Return powers of two from the smallest size to the largest, at most some nine."""
    low, high = min(sizes).bit_length() - 1, (max(sizes) - 1).bit_length()
    step = -(-(high - low + 1) // 9)
    return [1 << power for power in range(low, high + 1, step)]
