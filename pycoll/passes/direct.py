"""Direct: messages vanish; ranks read peers' inputs and write peers' outputs themselves.

What is folded is pulled from the sender's input; what is final is pushed into the place of the
receiver's output that its receive names, by the move that makes it. Without messages nothing
orders two ranks between the entry and the DONE counts, so memory that anyone writes may be
touched by one rank only. Whether that holds is a question about all ranks (`check_direct`); how one
rank's side looks, about it and the ranks that it exchanges messages with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pycoll.passes.fold import Folder
from pycoll.passes.hide import within
from pycoll.passes.moves import Location, Move, Where, local, remote
from pycoll.passes.slots import local_step
from pycoll.schedule import Buffer, Kind, NotDirect, RankSteps, Schedule, Step
from pycoll.schedule.step import places

#: A rank -> its steps.
StepsOf = Callable[[int], RankSteps]


class Direct(NamedTuple):
    """One rank's side of a direct form."""

    moves: list[Move]
    pushed: frozenset[int]  #: chunks of its OUT that peers write
    touches: frozenset[int]  #: ranks whose memory it reads or writes
    touched_by: frozenset[int]  #: ranks that read or write its memory


def direct(mine: RankSteps, of: StepsOf, completes: frozenset[int], folder: Folder) -> Direct:
    """Return one rank's side; ``of`` is asked for the ranks that it exchanges messages with."""
    rank, moves = mine.rank, list[Move]()
    pushed, touches, touched_by = set[int](), set[int](), set[int]()
    sent: dict[int, int] = defaultdict(int)  # peer -> messages so far
    received: dict[int, int] = defaultdict(int)
    for i, (kind, channel, chunks, peers, source) in enumerate(mine.steps):
        here = local(chunks)
        if kind is Kind.SEND:
            taken = of(peers[0]).receives[rank, channel][sent[peers[0]]]
            sent[peers[0]] += 1
            if taken.kind is Kind.RECV:
                there = remote(Where.PEER_OUT, peers[0], taken.chunks)
                moves.append(Move(channel, (here,), (there,)))
                touches.add(peers[0])
            else:  # its receiver fetches it
                touched_by.add(peers[0])
        elif kind is Kind.RECV:
            pushed.update(places(chunks))
            touched_by.add(peers[0])
            received[peers[0]] += 1
        elif kind is Kind.RECV_REDUCE:
            order = []
            for peer in peers:
                if peer == rank:
                    order.append(here)
                    continue
                given = of(peer).sends[rank, channel][received[peer]].chunks
                received[peer] += 1
                order.append(remote(Where.PEER_IN, peer, given))
                touches.add(peer)
            moves += folder.fold(channel, tuple(order), here, i in completes)
        else:
            moves += local_step(kind, channel, chunks, source, i in completes)
    return Direct(moves, *map(frozenset, (pushed, touches, touched_by)))


def check_steps(s: Schedule) -> None:
    """Raise NotDirect where a step of any rank keeps the schedule from having a direct form."""
    if s.nchannels > 1:
        raise NotDirect(f"{s.name}: no direct form: it uses {s.nchannels} channels, want 1")
    for rank, steps in enumerate(s.ranks):
        taken: dict[int, int] = defaultdict(int)  # peer -> messages so far
        for i, step in enumerate(steps):
            if step.kind is Kind.RECV:
                _check_final(s.of(rank), i, step)
            for peer in step.senders(rank):
                number = taken[peer]
                taken[peer] += 1
                if step.kind is Kind.RECV_REDUCE:
                    _check_untouched(s.of(peer), rank, number)


def _check_final(mine: RankSteps, i: int, step: Step) -> None:
    if step.chunks.buffer is not Buffer.OUTPUT or not within(local(step.chunks), mine.kept):
        raise NotDirect(
            f"{mine.name}: no direct form: rank {mine.rank} step {i}: {step}: a peer can write to "
            "out only"
        )


def _check_untouched(theirs: RankSteps, to: int, number: int) -> None:
    """Check what a rank sends to ``to`` as message ``number``, which is folded there."""
    sends = (i for i, s in enumerate(theirs.steps) if s.kind is Kind.SEND and s.peers[0] == to)
    j = next(i for n, i in enumerate(sends) if n == number)
    chunks = theirs.steps[j].chunks
    written = (w for step in theirs.steps[:j] for w in step.writes())
    apart = chunks.buffer is Buffer.INPUT and not theirs.collective.in_place
    if chunks.buffer is Buffer.SCRATCH or any(
        w.buffer is Buffer.OUTPUT and not set(places(w)).isdisjoint(places(chunks))
        for w in written
        if not apart
    ):
        raise NotDirect(
            f"{theirs.name}: no direct form: rank {theirs.rank} step {j}: {theirs.steps[j]}: its "
            "receiver folds it, and it is not an untouched chunk of the input"
        )


def check_exclusive(s: Schedule, moves: Sequence[list[Move]]) -> None:
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
