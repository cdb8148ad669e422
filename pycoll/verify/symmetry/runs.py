"""Sets of numbers as runs, so that what lies side by side costs one entry however long it is."""

from __future__ import annotations

from collections.abc import Iterable

Runs = tuple[tuple[int, int], ...]  #: [start, stop) each, ascending, none of them touching


def of(numbers: Iterable[int]) -> Runs:
    """Return the runs that hold ``numbers``."""
    return merged([(x, x + 1) for x in numbers])


def merged(pieces: list[tuple[int, int]]) -> Runs:
    """Return pieces that do not overlap, in any order, as runs."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(pieces):
        if result and result[-1][1] == start:
            result[-1] = result[-1][0], stop
        else:
            result.append((start, stop))
    return tuple(result)


def common(a: Runs, b: Runs) -> Runs:
    """Return what is in both."""
    result, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            result.append((start, stop))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def without(a: Runs, b: Runs) -> Runs:
    """Return what is in ``a`` and not in ``b``."""
    if not a:
        return ()
    outside, last = [], a[0][0]
    for start, stop in b:
        if last < start:
            outside.append((last, start))
        last = max(last, stop)
    if last < a[-1][1]:
        outside.append((last, a[-1][1]))
    return common(a, tuple(outside))
