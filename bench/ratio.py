"""Times of one launch set against each other: the numbers that the claims are about."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
MPIS = ("openmpi", "mpich")


def ratio(
    rows: Iterable[Row], nbytes: int, mpi: str, library: str, call: str, arrays: str
) -> float | None:
    """Return pycoll's time over another library's, the median over the launches under one MPI."""
    found = ratios(rows, nbytes, mpi, library, call, arrays)
    return statistics.median(found) if found else None


def ratios(
    rows: Iterable[Row], nbytes: int, mpi: str, library: str, call: str, arrays: str
) -> list[float]:
    """Return pycoll's time over another library's in each launch under one MPI.

    Both times come from one launch, so what the machine did that minute cancels.
    """
    own: dict[int, float] = {}
    other: dict[int, float] = {}
    for row in rows:
        if (row["nbytes"], row["mpi"]) != (nbytes, mpi):
            continue
        median = row["time_us"]["median"]
        if (row["library"], row["call"], row["arrays"]) == ("pycoll", call, arrays):
            own[row["round"]] = median
        elif row["library"] == library:
            other[row["round"]] = median
    return [own[r] / other[r] for r in own.keys() & other.keys()]


def worst(
    rows: Iterable[Row],
    nbytes: int,
    library: str = "mpi4py",
    call: str = "call",
    arrays: str = "numpy",
) -> float | None:
    """Return the ratio to the better MPI: the larger of the two."""
    rows = list(rows)
    found = [ratio(rows, nbytes, mpi, library, call, arrays) for mpi in MPIS]
    known = [value for value in found if value is not None]
    return max(known) if known else None


#: Student's t for a two-sided 95 % interval, by the number of values.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and its 95 % interval; 2 to 10 of them."""
    logs = [math.log(one) for one in values]
    mean = statistics.fmean(logs)
    half = _T[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def worst_interval(
    rows: Iterable[Row],
    nbytes: int,
    library: str = "mpi4py",
    call: str = "call",
    arrays: str = "numpy",
) -> tuple[float, float, float]:
    """Return the mean ratio to the better MPI over the launches, and its 95 % interval."""
    rows = list(rows)
    found = (ratios(rows, nbytes, mpi, library, call, arrays) for mpi in MPIS)
    return max(interval(values) for values in found if values)


def best(rows: Iterable[Row], nbytes: int, hierarchical: bool) -> Row | None:
    """Return the row of pycoll's fastest algorithm of one kind: flat, or aware of placement."""
    found = [
        row
        for row in rows
        if (row["nbytes"], row["library"]) == (nbytes, "pycoll")
        and row["algorithm"].startswith("hierarchical") == hierarchical
    ]
    return min(found, key=lambda row: row["time_us"]["median"], default=None)


def sizes(rows: Iterable[Row]) -> list[int]:
    """Return the message sizes, ascending."""
    return sorted({row["nbytes"] for row in rows})
