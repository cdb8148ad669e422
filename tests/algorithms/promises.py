"""What every collective must give, computed by numpy from its own rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pycoll.schedule import Collective

Array = np.ndarray[Any, Any]


def block_counts(collective: Collective, size: int, count: int) -> list[int]:
    """Return elements per block: as unequal as the collective allows, some of them none."""
    if collective.blocks == "one":
        return [count]
    if collective.equal_blocks:
        return [count] * size
    return [count * (block * 7 % 4) // 2 for block in range(size)]


def messages(size: int, total: int) -> list[Array]:
    """Return whole messages whose every element differs over ranks and places."""
    return [(np.arange(total) * 131 + 1) * (rank + 1) % 99991 for rank in range(size)]


def provided(
    collective: Collective, rank: int, data: Sequence[Array], counts: Sequence[int]
) -> Array:
    """Return what the collective gives ``rank``."""
    blocks = collective.in_blocks(rank, len(data))
    return join(data[rank], [spans(counts)[b] for b in blocks])


def promised(
    collective: Collective, rank: int, data: Sequence[Array], counts: Sequence[int]
) -> Array:
    """Return what the collective promises ``rank``."""
    size = len(data)
    parts = []
    for block in collective.out_blocks(rank, size):
        ranks = collective.after(rank, block, size)
        assert ranks is not None
        span = spans(counts)[collective.origin(rank, block, size)]
        parts.append(np.sum([data[r][span] for r in ranks], axis=0, dtype=data[0].dtype))
    return np.concatenate(parts) if parts else data[0][:0]


def spans(counts: Sequence[int]) -> list[slice]:
    """Return where each block lies in the message."""
    return [slice(a, b) for a, b in pairwise(accumulate(counts, initial=0))]


def join(message: Array, parts: Sequence[slice]) -> Array:
    """Return some parts of a message side by side."""
    return np.concatenate([message[part] for part in parts]) if parts else message[:0]
