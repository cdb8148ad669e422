"""Moved: one message of a checked call that only moves data.

The checksum of each block at the rank that brings it is compared with those at the ranks that get
it, so the two ranks are known, and the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pycoll.runtime.check.finding import Finding, majority, ranks_text
from pycoll.runtime.check.followed import followed
from pycoll.runtime.check.hops import Fit
from pycoll.runtime.check.memory import Message
from pycoll.runtime.plan.geometry import Extent, geometry
from pycoll.schedule import COLLECTIVES

if TYPE_CHECKING:
    from pycoll.runtime.check.exchange import Exchange
    from pycoll.runtime.check.memory import Octets, Room
    from pycoll.runtime.dispatch import Dispatcher
    from pycoll.runtime.dispatch import Message as Call
    from pycoll.runtime.p2p.batch import Batch

_ABSENT = -1


class _Wrong(NamedTuple):
    """A block that is not what was brought."""

    sender: int
    brought: int  #: block of the sender's input
    receiver: int
    block: int  #: of the receiver's output


class Moved:
    """One message that is moved by a Program.

    Args:
        launch: What runs calls.
        room: Memory of the check's own.
        call: What is run, and on which arrays.
        number: Of the message among those of its call.
    """

    def __init__(self, launch: Dispatcher, room: Room, call: Call, number: int) -> None:
        engine = launch.engine
        self._engine, self._room, self._call, self._number = engine, room, call, number
        self._rank, self._size = engine.world.rank, engine.world.size
        self._collective = COLLECTIVES[call.call.collective]
        self._blocks = call.call.blocks(self._size)
        self._geometry = geometry(self._collective, self._rank, self._size, call.call.root)
        self._brought = Message.of(call.inputs)
        self._got = Message.of(call.outputs)

    def before(self) -> None:
        """Keep what is brought where the result overwrites it."""
        call = self._call
        if self._collective.in_place or not any(
            x.overlaps(y) for x in call.inputs for y in call.outputs
        ):
            return
        kept: Octets = self._room.plain(f"input {self._number}", self._brought.nbytes)
        self._brought.copy_to(Message([kept]))
        self._brought = Message([kept])

    def after(self) -> list[int]:
        """Return what this rank tells the others: checksums of what it brings, and has."""
        return [
            *self._checksums(self._brought, self._geometry.input),
            *self._checksums(self._got, self._geometry.output),
        ]

    def wrong(self, told: Sequence[Sequence[int]]) -> bool:
        """Tell whether blocks are wrong, from what all ranks told."""
        return bool(self._wrong(told))

    def find(self, exchange: Exchange, told: Sequence[Sequence[int]]) -> Finding | None:
        """Find out where and whose; all ranks do. None: no byte differs any more."""
        wrong = self._wrong(told)[0]
        holders = [w for w in self._promised() if (w.sender, w.brought) == wrong[:2]]
        mine: list[Message | None] = [None, None]
        if wrong.sender == self._rank:
            mine[0] = self._block(self._brought, self._geometry.input, wrong.brought)
        for held in holders:
            if held.receiver == self._rank:
                mine[1] = self._block(self._got, self._geometry.output, held.block)
        extent = exchange.extent(mine)
        if extent is None:
            return None
        at = extent[0]
        bytes_ = [b"" if m is None else m.part(at, at + 1).to_bytes() for m in mine]
        holds = self._engine.heap.holds
        mapped = all(
            holds(view.address, view.nbytes) for view in (*self._call.inputs, *self._call.outputs)
        )
        rows = exchange.texts([*bytes_, bytes([mapped])], 1)
        return self._judged(wrong, holders, extent, rows)

    def _judged(
        self,
        wrong: _Wrong,
        holders: list[_Wrong],
        extent: tuple[int, int],
        rows: list[list[bytes]],
    ) -> Finding:
        call, at = self._call, extent[0]
        sent = rows[wrong.sender][0]
        got = {held.receiver: rows[held.receiver][1] for held in holders}
        direct = all(row[2] != b"\0" for row in rows) and not call.packed
        _, fits, unsought = followed(
            *(self._engine, call.call, call.wanted, call.plan, direct, at),
            {(wrong.sender, wrong.brought): sent},
            {(held.receiver, held.block): got[held.receiver] for held in holders},
        )
        item = call.call.dtype.itemsize
        fits = [fit._replace(bit=fit.bit + 8 * (at % item)) for fit in fits]
        whose, ranks = whose_block(wrong.sender, sent, got)
        begin = self._begin(wrong.receiver, wrong.block)
        return Finding(
            place=f"of rank {wrong.receiver}'s result, not what rank {wrong.sender} brought",
            first=(begin + at) // item,
            last=(begin + extent[1]) // item,
            offset=begin + at,
            whose=whose,
            ranks=ranks,
            fits=tuple(fits),
            unsought=unsought,
        )

    def _begin(self, rank: int, block: int) -> int:
        """Return the byte of a rank's result at which a block begins."""
        extent = geometry(self._collective, rank, self._size, self._call.call.root).output
        return sum(self._blocks[extent.first : block])

    def _wrong(self, told: Sequence[Sequence[int]]) -> list[_Wrong]:
        n = len(self._blocks)
        return [
            w
            for w in self._promised()
            if told[w.sender][w.brought] != told[w.receiver][n + w.block]
        ]

    def _promised(self) -> list[_Wrong]:
        """Return whose block each block of each rank's result shall be."""
        found, c, n, size = [], self._collective, len(self._blocks), self._size
        root = self._call.call.root
        for rank in range(size):
            extent = geometry(c, rank, size, root).output
            for block in range(extent.first, extent.first + extent.nblocks):
                place = (rank - root) % size, (block - root) % n
                sender = min(c.after(*place, size) or ())
                brought = (c.origin(*place, size) + root) % n
                found.append(_Wrong((sender + root) % size, brought, rank, block))
        return found

    def _checksums(self, message: Message, extent: Extent) -> list[int]:
        return [
            self._block(message, extent, block).checksum()
            if extent.first <= block < extent.first + extent.nblocks
            else _ABSENT
            for block in range(len(self._blocks))
        ]

    def _block(self, message: Message, extent: Extent, block: int) -> Message:
        begin = sum(self._blocks[extent.first : block])
        return message.part(begin, begin + self._blocks[block])


class Pairs:
    """The messages of a checked call that no Program sends: each goes straight to its receiver.

    Args:
        rank: This process's.
        size: Number of ranks.
        batch: The messages.
    """

    def __init__(self, rank: int, size: int, batch: Batch) -> None:
        from pycoll.runtime.check.memory import octets

        self._rank, self._size, self._item = rank, size, batch.dtype.itemsize
        self._sent = [Message([]) for _ in range(size)]
        self._got = [Message([]) for _ in range(size)]
        for m in batch.messages:
            by = self._sent if m.sending else self._got
            by[m.peer] = Message([*by[m.peer].pieces, octets(m.address, m.nbytes)])

    def after(self) -> list[int]:
        """Return what this rank tells the others."""
        return [message.checksum() for message in (*self._sent, *self._got)]

    def wrong(self, told: Sequence[Sequence[int]]) -> bool:
        """Tell whether messages are wrong, from what all ranks told."""
        return bool(self._wrong(told))

    def find(self, exchange: Exchange, told: Sequence[Sequence[int]]) -> Finding | None:
        """Find out where and whose; all ranks do. None: no byte differs any more."""
        sender, receiver = self._wrong(told)[0]
        mine: list[Message | None] = [
            self._sent[receiver] if self._rank == sender else None,
            self._got[sender] if self._rank == receiver else None,
        ]
        extent = exchange.extent(mine)
        if extent is None:
            return None
        at, item = extent[0], self._item
        bytes_ = [b"" if m is None else m.part(at, at + 1).to_bytes() for m in mine]
        rows = exchange.texts(bytes_, 1)
        sent, got = rows[sender][0], rows[receiver][1]
        flipped = sent[0] ^ got[0]
        fits: tuple[Fit, ...] = ()
        if flipped.bit_count() == 1:
            bit = flipped.bit_length() - 1 + 8 * (at % item)
            fits = (Fit("message", sender, receiver, bit),)
        whose, ranks = whose_block(sender, sent, {receiver: got})
        return Finding(
            f"of what rank {receiver} got, not what rank {sender} sent it",
            *(at // item, extent[1] // item, at, whose, ranks, fits),
        )

    def _wrong(self, told: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        n = self._size
        pairs = [(a, b) for a in range(n) for b in range(n)]
        return [(a, b) for a, b in pairs if told[a][b] != told[b][n + a]]


def whose_block(sender: int, sent: bytes, got: dict[int, bytes]) -> tuple[str, tuple[int, ...]]:
    """Say which of the ranks that have a block is odd: its sender, or who got it."""
    votes = {**got, sender: sent}
    right = majority(votes)
    if right is None:
        both = sorted(votes)
        return f"it is not known which of {ranks_text(both)} is wrong", tuple(both)
    odd = sorted(rank for rank in votes if votes[rank] != right)
    if not odd:  # what the sender has got of itself is not what it brought
        odd = [sender]
    return f"what {ranks_text(odd)} has is not what the others have", tuple(odd)
