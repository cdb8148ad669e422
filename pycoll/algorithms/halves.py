"""Runs of blocks that recursive halving and doubling move, where size is no power of two."""

from __future__ import annotations


def spans(low: int, n: int, size: int) -> list[tuple[int, int]]:
    """Return blocks low to low + n, and those of the ranks that were folded into them."""
    p = 1 << (size.bit_length() - 1)
    extra = (low + p, min(low + n + p, size))
    return [(low, low + n), *([extra] if extra[0] < extra[1] else [])]
