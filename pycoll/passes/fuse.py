"""Fuse: a value is sent on by the move that makes it, and one read feeds several sends."""

from __future__ import annotations

from pycoll.passes.moves import Location, Move, Where, outgoing


def fuse(moves: list[Move]) -> list[Move]:
    """Return the moves with sends merged into the move before them in their channel.

    A send of X merges into a move that writes X, or into a send of the same X. The number of
    destinations is not limited here; see ``split``.
    """
    result: list[Move] = []
    last: dict[int, _Growing] = {}  # channel -> its last move
    for move in moves:
        into = last.get(move.channel)
        if into is not None and into.takes(move, result):
            into.add(move)
            continue
        if into is not None:
            into.close(result)
        last[move.channel] = _Growing(len(result), move)
        result.append(move)
    for into in last.values():
        into.close(result)
    return result


class _Growing:
    """A move that later sends may merge into; it may have a destination for each rank."""

    def __init__(self, at: int, move: Move) -> None:
        self.at = at  #: index in the result
        self.move = move
        self.destinations = list(move.destinations)
        self.places = set(move.destinations)
        self.sends = all(map(outgoing, move.destinations))
        self.taken = {(d.where, d.peer) for d in move.destinations if outgoing(d)}

    def takes(self, send: Move, result: list[Move]) -> bool:
        source = send.sources[0]
        if (
            len(send.sources) != 1
            or source.where is Where.SLOT
            or not all(map(outgoing, send.destinations))
            or not (source in self.places or (self.sends and self.move.sources == send.sources))
            or any((d.where, d.peer) in self.taken for d in send.destinations)
        ):
            return False  # the last, as a move fills at most one slot of an edge
        if self.at + 1 == len(result):
            return True
        # Moves between belong to other channels; none may give the value another meaning.
        between = result[self.at + 1 :]
        return not any(_overlaps(source, d) for move in between for d in move.destinations)

    def add(self, send: Move) -> None:
        self.destinations += send.destinations
        self.places.update(send.destinations)
        self.taken.update((d.where, d.peer) for d in send.destinations)

    def close(self, result: list[Move]) -> None:
        if len(self.destinations) > len(self.move.destinations):
            result[self.at] = self.move._replace(destinations=tuple(self.destinations))


def _overlaps(a: Location, b: Location) -> bool:
    return not set(a.memory()).isdisjoint(b.memory())


def drop_dead_stores(moves: list[Move], promised: range, limit: int) -> list[Move]:
    """Return the moves without stores that are overwritten before anything reads them.

    ``promised`` are the chunks of OUT that the caller is given. A store stays where ``split``
    will need it as a source: with more than ``limit`` sends.
    """
    live = set(promised)  # at the end, OUT and nothing of scratch
    result: list[Move] = []
    for move in reversed(moves):
        kept, sends = [], sum(map(outgoing, move.destinations))
        for d in move.destinations:
            if outgoing(d) or sends > limit or not live.isdisjoint(d.memory()):
                kept.append(d)
        if not kept and any(s.where is Where.SLOT for s in move.sources):
            kept = list(move.destinations)  # the message has to be consumed all the same
        if not kept:
            continue
        for d in kept:
            live.difference_update(d.memory())
        for s in move.sources:
            if s.where is not Where.IN:
                live.update(s.memory())
        result.append(move._replace(destinations=tuple(kept)))
    return result[::-1]


def split(moves: list[Move], limit: int) -> list[Move]:
    """Return the moves with at most ``limit`` destinations each."""
    result: list[Move] = []
    for move in moves:
        first, rest = move.destinations[:limit], move.destinations[limit:]
        result.append(move._replace(destinations=first))
        kept = [d for d in first if not outgoing(d)]
        sources = (kept[0],) if kept else move.sources
        for i in range(0, len(rest), limit):
            result.append(Move(move.channel, sources, rest[i : i + limit]))
    return result
