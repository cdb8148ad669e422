"""What follows from the rows of a contest: lines of the table, ratios, the floor, the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def floor_seconds(ranks: int, nbytes: int, copied: int, seconds: float) -> float:
    """Return what no out-of-place all-reduce on one GPU can go below.

    Every rank's input is read once and its output written once: 2 n S bytes, at the rate at which a
    copy of ``copied`` bytes, which reads and writes each once, took ``seconds``.
    """
    return 2 * ranks * nbytes / (2 * copied / seconds)


def line(row: dict[str, Any]) -> str:
    """Return one row of the table."""
    time = row["time_us"]
    floor = f"{row['of_floor']:>6.1%} of the floor " if "of_floor" in row else ""
    return (
        f"{row['ranks']:>2} ranks {row['mode']:<5} {row['nbytes']:>12} B {row['library']:<7} "
        f"{time['min']:>10.2f} {time['median']:>10.2f} {time['p99']:>10.2f} us "
        f"{row['busbw_GBps']:>9.2f} GB/s {floor}{row['wrong']:>3} wrong"
    )


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return pycoll's time over NCCL's, of every pair of rows that were measured together."""
    times = {
        (row["ranks"], row["mode"], row["nbytes"], row["library"]): row["time_us"]["median"]
        for row in rows
    }
    return [
        {"ranks": ranks, "mode": mode, "nbytes": nbytes, "ratio": own / other}
        for (ranks, mode, nbytes, library), own in times.items()
        if library == "pycoll" and (other := times.get((ranks, mode, nbytes, "nccl")))
    ]


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what the claims are about: latency up to 64 KiB, bandwidth from 64 MiB."""
    found = ratios(rows)
    for ranks, mode in dict.fromkeys((entry["ranks"], entry["mode"]) for entry in found):
        mine = [entry for entry in found if (entry["ranks"], entry["mode"]) == (ranks, mode)]
        small = [entry["ratio"] for entry in mine if entry["nbytes"] <= 64 << 10]
        large = [1 / entry["ratio"] for entry in mine if entry["nbytes"] >= 64 << 20]
        if small:
            text = f"latency up to 64 KiB at most {max(small):.2f} of NCCL's"
            yield f"# {ranks} ranks, {mode}: {text}"
        if large:
            text = f"bandwidth from 64 MiB at least {min(large):.2f} of NCCL's"
            yield f"# {ranks} ranks, {mode}: {text}"
