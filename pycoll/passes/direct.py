"""Direct: messages vanish; ranks read peers' inputs and write peers' outputs themselves.

What is folded is pulled from the sender's input; what is final is pushed into the place of the
receiver's output that its receive names, by the move that makes it. Without messages nothing
orders two ranks between the entry and the DONE counts, so memory that anyone writes may be
touched by one rank only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pycoll.passes.fold import Folder
from pycoll.passes.hide import within
from pycoll.passes.moves import Location, Move, Where, local, remote
from pycoll.passes.slots import local_step
from pycoll.schedule import Buffer, Chunks, Kind, NotDirect, Schedule
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
    into: dict[tuple[int, int], Chunks] = {}  # where a send lands; not if its receiver fetches it
    pushed: list[set[int]] = [set() for _ in s.ranks]
    matches = match(s)
    for (rank, i), sends in matches.items():
        step = s.ranks[rank][i]
        if step.kind is Kind.RECV:
            _check_final(s, rank, i, step)
            pushed[rank].update(places(step.chunks))
            into[sends[0]] = step.chunks
            continue
        for sender, j in sends:
            _check_untouched(s, sender, j)
    moves: list[list[Move]] = []
    for rank, steps in enumerate(s.ranks):
        mine: list[Move] = []
        for i, (kind, channel, chunks, peers, source) in enumerate(steps):
            here = local(chunks)
            if kind is Kind.SEND:
                if (rank, i) in into:
                    there = remote(Where.PEER_OUT, peers[0], into[rank, i])
                    mine.append(Move(channel, (here,), (there,)))
            elif kind is Kind.RECV_REDUCE:
                sent = {p: s.ranks[p][j].chunks for p, j in matches[rank, i]}
                order = tuple(
                    here if p == rank else remote(Where.PEER_IN, p, sent[p]) for p in peers
                )
                mine += folders[rank].fold(channel, order, here, i in completes[rank])
            elif kind is not Kind.RECV:
                mine += local_step(kind, channel, chunks, source, i in completes[rank])
        moves.append(mine)
    return moves, [frozenset(p) for p in pushed]


def _check_final(s: Schedule, rank: int, i: int, step: Step) -> None:
    kept = s.collective.out_extent(rank, s.size, s.nchunks)
    if step.chunks.buffer is not Buffer.OUTPUT or not within(local(step.chunks), kept):
        raise NotDirect(
            f"{s.name}: no direct form: rank {rank} step {i}: {step}: a peer can write to out only"
        )


def _check_untouched(s: Schedule, sender: int, j: int) -> None:
    chunks = s.ranks[sender][j].chunks
    written = (w for step in s.ranks[sender][:j] for w in step.writes())
    apart = chunks.buffer is Buffer.INPUT and not s.collective.in_place
    if chunks.buffer is Buffer.SCRATCH or any(
        w.buffer is Buffer.OUTPUT and not set(places(w)).isdisjoint(places(chunks))
        for w in written
        if not apart
    ):
        raise NotDirect(
            f"{s.name}: no direct form: rank {sender} step {j}: {s.ranks[sender][j]}: its receiver "
            "folds it, and it is not an untouched chunk of the input"
        )


def check_exclusive(s: Schedule, moves: list[list[Move]]) -> None:
    """Raise NotDirect where a chunk is written and touched by more than one rank."""
    touched: dict[Memory, set[int]] = defaultdict(set)
    written: set[Memory] = set()
    kept = [s.collective.out_extent(rank, s.size, s.nchunks) for rank in range(s.size)]
    for rank, mine in enumerate(moves):
        for move in mine:
            for place in move.sources + move.destinations:
                for key in _memory(s, rank, place, kept):
                    touched[key].add(rank)
            for place in move.destinations:
                written.update(_memory(s, rank, place, kept))
    for key in sorted(written):
        ranks = sorted(touched[key])
        if len(ranks) > 1:
            raise NotDirect(
                f"{s.name}: no direct form: ranks {ranks[0]} and {ranks[1]} both touch chunk "
                f"{key[2]} of rank {key[0]}, and one of them writes it"
            )


Memory = tuple[int, bool, int]  #: owner, whether it is an input that is never the output, place


def _memory(s: Schedule, rank: int, place: Location, kept: list[range]) -> list[Memory]:
    # In place, IN and OUT are one memory; scratch is nobody else's, nor is what stands for places
    # that the output does not have.
    if place.where is Where.SCRATCH:
        return []
    owner = place.peer if place.where in (Where.PEER_IN, Where.PEER_OUT) else rank
    reads_input = place.where in (Where.IN, Where.PEER_IN)
    apart = reads_input and not s.collective.in_place
    keys = range(place.place, place.place + place.nchunks)
    return [(owner, apart, p) for p in keys if reads_input or p in kept[owner]]
