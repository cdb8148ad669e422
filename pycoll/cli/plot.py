"""Time against message size, one line per library, as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycoll.cli.report import Row, label
from pycoll.errors import UnavailableError


def require() -> Any:
    """Return matplotlib's Figure, or say how to get it; called before hours of measuring."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            f"--plot needs matplotlib, which does not load ({error}); pip install matplotlib"
        ) from error
    return Figure


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows' medians into the picture ``path``, both axes logarithmic."""
    figure = require()(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    chosen: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        chosen.setdefault((label(row), row["nbytes"]), set()).add(row["algorithm"])
    several = {name for (name, _), algorithms in chosen.items() if len(algorithms) > 1}
    lines: dict[str, list[Row]] = {}
    for row in rows:
        name = label(row)
        lines.setdefault(f"{name} {row['algorithm']}" if name in several else name, []).append(row)
    for name, points in lines.items():
        sizes = sorted({row["nbytes"] for row in points})
        # A result may hold several launches of one size.
        times = [[row["time_us"] for row in points if row["nbytes"] == size] for size in sizes]
        medians = [statistics.median(t["median"] for t in launches) for launches in times]
        low = [min(t["min"] for t in launches) for launches in times]
        high = [max(t["p99"] for t in launches) for launches in times]
        axes.plot(sizes, medians, marker="o", label=name)
        axes.fill_between(sizes, low, high, alpha=0.15)
    first = rows[0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message (bytes)")
    axes.set_ylabel("time of the slowest rank (us)")
    op = "" if first["op"] == "-" else f" {first['op']}"
    axes.set_title(f"{first['collective']}{op}, {first['dtype']}, {first['ranks']} ranks")
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
