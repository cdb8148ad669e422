"""Words: times, bytes, rates and ranks as the report says them."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def duration(ns: float) -> str:
    """Return a time with three digits: 850 ns, 12.3 us, 5.01 ms, 20.0 s."""
    for unit, length in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= 0.9995 * length:
            return f"{_three(ns / length)} {unit}"
    return f"{ns:.0f} ns"


def amount(nbytes: float) -> str:
    """Return a number of bytes with three digits; the units are powers of 1024."""
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= length:
            return f"{_three(nbytes / length)} {unit}"
    return f"{nbytes:.0f} B"


def rate(bytes_per_ns: float) -> str:
    """Return GB/s, or MB/s of less than a tenth; a byte in a nanosecond is one GB/s."""
    if 0 < abs(bytes_per_ns) < 0.1:
        return f"{_three(1000 * bytes_per_ns)} MB/s"
    return f"{_three(bytes_per_ns)} GB/s"


def _three(number: float) -> str:
    size = abs(number)
    return f"{number:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


def numbers(ranks: Iterable[int]) -> str:
    """Return ranks in order, with a dash between the ends of a run: 0-3, 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def named(ranks: Collection[int]) -> str:
    """Return "rank 3" or "ranks 0-3, 5"."""
    return f"rank{'s' * (len(ranks) != 1)} {numbers(ranks)}"
