"""The order that channels of one rank must keep: who has to wait for whom.

Within a channel, order is free. Two accesses to one place from two channels, at least one a
write, keep the order of the builder's calls; only the waits that no other wait implies remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Access(NamedTuple):
    """What one item of a channel touches, by keys of places."""

    channel: int
    reads: Iterable[int]
    writes: Iterable[int]


def cross_channel(items: Sequence[Access]) -> list[tuple[int, ...]]:
    """Return, per item, the earlier items of other channels that it must wait for."""
    none: list[tuple[int, ...]] = [()] * len(items)
    if len({item.channel for item in items}) < 2:
        return none
    last_write: dict[int, dict[int, int]] = {}  # place -> channel -> item
    last_read: dict[int, dict[int, int]] = {}
    known: dict[int, dict[int, int]] = {}  # channel -> other channel -> last item known as done
    known_after: list[dict[int, int]] = []  # the same behind each item
    result = none
    for i, (channel, reads, writes) in enumerate(items):
        need: dict[int, int] = {}
        for place in reads:
            _latest(need, last_write.get(place, {}))
            last_read.setdefault(place, {})[channel] = i
        for place in writes:
            _latest(need, last_write.get(place, {}))
            _latest(need, last_read.get(place, {}))
            last_write.setdefault(place, {})[channel] = i
        mine = known.setdefault(channel, {})
        waits = []
        # The latest item first: what it knows may imply the others.
        for other, j in sorted(need.items(), key=lambda item: -item[1]):
            if other != channel and mine.get(other, -1) < j:
                waits.append(j)
                _latest(mine, known_after[j])
                _latest(mine, {other: j})
        result[i] = tuple(sorted(waits))
        known_after.append(dict(mine))
    return result


def _latest(into: dict[int, int], other: dict[int, int]) -> None:
    for channel, item in other.items():
        if into.get(channel, -1) < item:
            into[channel] = item
