"""Direct: messages vanish; ranks read peers' inputs and write peers' outputs themselves.

What is folded is pulled from the sender's input; what is final is pushed into the receiver's
output by the move that makes it. Without messages nothing orders two ranks between the entry
and the DONE counts, so memory that anyone writes may be touched by one rank only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pycoll.passes.fold import Folder
from pycoll.passes.moves import Move, Place, Where, local, remote
from pycoll.passes.slots import local_step
from pycoll.schedule import Buffer, Kind, NotDirect, Schedule
from pycoll.schedule.step import Step, places

#: (rank, step) of every receive -> (rank, step) of the sends that it takes, in fold order
Matches = dict[tuple[int, int], list[tuple[int, int]]]


def match(s: Schedule) -> Matches:
    """Pair every receive with its sends; the schedule has been checked to have both."""
    sends: dict[tuple[int, int, int], Iterator[int]] = {}
    by_edge: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for rank, steps in enumerate(s.ranks):
        for i, step in enumerate(steps):
            if step.kind is Kind.SEND:
                by_edge[rank, step.peers[0], step.channel].append(i)
    result: Matches = {}
    for rank, steps in enumerate(s.ranks):
        for i, step in enumerate(steps):
            for peer in step.senders(rank):
                edge = (peer, rank, step.channel)
                queue = sends.setdefault(edge, iter(by_edge[edge]))
                result.setdefault((rank, i), []).append((peer, next(queue)))
    return result


def direct(
    s: Schedule, completes: tuple[frozenset[int], ...], folders: list[Folder]
) -> tuple[list[list[Move]], list[frozenset[int]]]:
    """Return every rank's moves and the chunks of its OUT that peers write, or raise NotDirect."""
    if s.nchannels > 1:
        raise NotDirect(f"{s.name}: no direct form: it uses {s.nchannels} channels, want 1")
    pulled: set[tuple[int, int]] = set()  # sends that the receiver fetches itself
    pushed: list[set[int]] = [set() for _ in s.ranks]
    for (rank, i), sends in match(s).items():
        step = s.ranks[rank][i]
        if step.kind is Kind.RECV:
            _check_final(s, rank, i, step)
            pushed[rank].update(places(step.chunks))
            continue
        for sender, j in sends:
            _check_untouched(s, sender, j)
            pulled.add((sender, j))
    moves: list[list[Move]] = []
    for rank, steps in enumerate(s.ranks):
        mine: list[Move] = []
        for i, (kind, channel, chunks, peers, source) in enumerate(steps):
            here = local(chunks)
            if kind is Kind.SEND:
                if (rank, i) not in pulled:
                    there = remote(Where.PEER_OUT, peers[0], chunks)
                    mine.append(Move(channel, (here,), (there,)))
            elif kind is Kind.RECV_REDUCE:
                order = tuple(here if p == rank else _pull(p, here) for p in peers)
                mine += folders[rank].fold(channel, order, here, i in completes[rank])
            elif kind is not Kind.RECV:
                mine += local_step(kind, channel, chunks, source, i in completes[rank])
        moves.append(mine)
    return moves, [frozenset(p) for p in pushed]


def _pull(peer: int, here: Place) -> Place:
    return Place(Where.PEER_IN, peer, here.chunk, here.chunk, here.nchunks)


def _check_final(s: Schedule, rank: int, i: int, step: Step) -> None:
    if step.chunks.buffer is not Buffer.OUTPUT:
        raise NotDirect(
            f"{s.name}: no direct form: rank {rank} step {i}: {step}: a peer can write to out only"
        )


def _check_untouched(s: Schedule, sender: int, j: int) -> None:
    chunks = s.ranks[sender][j].chunks
    written = (w for step in s.ranks[sender][:j] for w in step.writes())
    if chunks.buffer is Buffer.SCRATCH or any(
        w.buffer is Buffer.OUTPUT and not set(places(w)).isdisjoint(places(chunks)) for w in written
    ):
        raise NotDirect(
            f"{s.name}: no direct form: rank {sender} step {j}: {s.ranks[sender][j]}: its receiver "
            "folds it, and it is not an untouched chunk of the input"
        )


def check_exclusive(s: Schedule, moves: list[list[Move]]) -> None:
    """Raise NotDirect where a chunk is written and touched by more than one rank."""
    touched: dict[tuple[int, int], set[int]] = defaultdict(set)
    written: set[tuple[int, int]] = set()
    for rank, mine in enumerate(moves):
        for move in mine:
            for place in move.sources + move.destinations:
                for key in _memory(rank, place):
                    touched[key].add(rank)
            for place in move.destinations:
                written.update(_memory(rank, place))
    for owner, chunk in sorted(written):
        ranks = sorted(touched[owner, chunk])
        if len(ranks) > 1:
            raise NotDirect(
                f"{s.name}: no direct form: ranks {ranks[0]} and {ranks[1]} both touch chunk "
                f"{chunk} of rank {owner}, and one of them writes it"
            )


def _memory(rank: int, place: Place) -> list[tuple[int, int]]:
    # In place, IN and OUT are one memory; scratch is nobody else's.
    if place.where is Where.SCRATCH:
        return []
    owner = place.peer if place.where in (Where.PEER_IN, Where.PEER_OUT) else rank
    return [(owner, c) for c in range(place.chunk, place.chunk + place.nchunks)]
