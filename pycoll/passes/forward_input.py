"""Forward the input: read IN where OUT was never written, so out of place costs no copy.

An algorithm works in place on the output as if it held the input. In place IN and OUT are the
same memory, so the result is right for both.
"""

from __future__ import annotations

from collections.abc import Iterable

from pycoll.passes.moves import Location, Move, Where


def forward_input(
    moves: list[Move], given: range, kept: range, pushed: frozenset[int] = frozenset()
) -> list[Move]:
    """Return the moves with first reads of OUT turned to IN; chunks nothing writes are copied.

    ``given`` and ``kept`` are the chunks that this rank's input and output have, ``pushed``
    those of OUT that peers write.
    """
    written: set[int] = set()
    result: list[Move] = []
    for move in moves:
        sources = []
        for source in move.sources:
            if source.where is Where.OUT:
                new = [c for c in source.memory() if c in given and c not in written]
                if len(new) == source.nchunks:
                    source = source._replace(where=Where.IN)
                elif new:
                    # One operand cannot lie half in IN and half in OUT.
                    result += copies(move.channel, new)
                    written.update(new)
            sources.append(source)
        for destination in move.destinations:
            if destination.where is Where.OUT:
                written.update(destination.memory())
        result.append(move._replace(sources=tuple(sources)))
    left = (c for c in kept if c in given and c not in written and c not in pushed)
    return result + copies(0, left)


def copies(channel: int, chunks: Iterable[int]) -> list[Move]:
    """Return the moves that copy chunks of IN to OUT."""
    runs: list[list[int]] = []
    for c in chunks:
        if runs and runs[-1][1] == c:
            runs[-1][1] = c + 1
        else:
            runs.append([c, c + 1])
    return [
        Move(
            channel,
            (Location(Where.IN, 0, first, first, end - first),),
            (Location(Where.OUT, 0, first, first, end - first),),
        )
        for first, end in runs
    ]
