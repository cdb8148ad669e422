"""Fuse: a value is sent on by the move that makes it, and one read feeds several sends."""

from __future__ import annotations

from pycoll.passes.moves import Location, Move, Where, outgoing


def fuse(moves: list[Move]) -> list[Move]:
    """Return the moves with sends merged into the move before them in their channel.

    A send of X merges into a move that writes X, or into a send of the same X. The number of
    destinations is not limited here; see ``split``.
    """
    result: list[Move] = []
    last: dict[int, int] = {}  # channel -> index in result of its last move
    for move in moves:
        at = last.get(move.channel)
        if at is not None and _is_send(move) and _joins(result[at], move, result[at + 1 :]):
            merged = result[at].destinations + move.destinations
            result[at] = result[at]._replace(destinations=merged)
        else:
            last[move.channel] = len(result)
            result.append(move)
    return result


def _is_send(move: Move) -> bool:
    return (
        len(move.sources) == 1
        and move.sources[0].where is not Where.SLOT
        and all(outgoing(d) for d in move.destinations)
    )


def _joins(first: Move, send: Move, between: list[Move]) -> bool:
    value = send.sources[0]
    makes = value in first.destinations
    repeats = first.sources == send.sources and all(outgoing(d) for d in first.destinations)
    if not makes and not repeats:
        return False
    taken = {(d.where, d.peer) for d in first.destinations if outgoing(d)}
    if any((d.where, d.peer) in taken for d in send.destinations):
        return False  # a move fills at most one slot of an edge
    # Moves between belong to other channels; none may give the value another meaning.
    return not any(_overlaps(value, d) for move in between for d in move.destinations)


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
