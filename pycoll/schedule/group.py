"""Group: some of the ranks, which run an algorithm among themselves on some of the chunks.

It looks like a ScheduleBuilder of fewer ranks and writes into the builder that it belongs to. An
algorithm may be called on it, so large algorithms are made of small ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pycoll.errors import ScheduleError
from pycoll.schedule.builder import ScheduleBuilder, folded
from pycoll.schedule.chunk import Buffer, Chunks, require_chunks
from pycoll.schedule.collective import Collective
from pycoll.schedule.placement import Placement


class Group(ScheduleBuilder):
    """A ScheduleBuilder for ``ranks`` of another one; see ``ScheduleBuilder.within``.

    Its input and its output are both the parent's output, as what a group works on may have been
    computed before; only where the collective keeps them apart is its input the parent's.
    """

    def __init__(
        self,
        parent: ScheduleBuilder,
        ranks: Sequence[int],
        chunks: Chunks | Sequence[Sequence[int]] | None,
        collective: Collective,
    ) -> None:
        """Make the view of the rank that ``parent`` is for."""
        if parent.rank not in ranks or len(set(ranks)) != len(ranks):
            raise ScheduleError(
                f"rank {parent.rank}: within {tuple(ranks)}, want ranks once each, {parent.rank} "
                "among them"
            )
        self._parent = parent
        self._ranks = tuple(ranks)
        #: the parent's chunks as one run, to be cut as the algorithm asks, or already in pieces
        self._run: range | None = None
        self._cuts: tuple[tuple[int, ...], ...] = ()
        if chunks is None:
            self._run = range(parent.nchunks)
        elif isinstance(chunks, Chunks):
            self._run = range(chunks.place, chunks.place + chunks.nchunks)
        else:
            self._cuts = tuple(map(tuple, chunks))
        self._first_scratch = parent.nscratch
        super().__init__(len(self._ranks), self._ranks.index(parent.rank), collective)

    @property
    def placement(self) -> Placement:
        """Which ranks of the group lie close together."""
        return self._parent.placement.among(self._ranks)

    def chunks(self, n: int) -> None:
        """Cut the group's part of the message into ``n`` chunks; they need not be equal."""
        super().chunks(n)
        self._pieces(0)

    @contextmanager
    def channel(self, channel: int) -> Iterator[None]:
        """Open ordered stream ``channel`` of the parent."""
        with self._parent.channel(channel):
            yield

    def send(self, chunks: Chunks, to: int) -> None:
        """Send ``chunks`` to rank ``to`` of the group."""
        for piece in self._outer(chunks):
            self._parent.send(piece, to=self._peer_of("send", to))

    def recv(self, chunks: Chunks, frm: int) -> None:
        """Overwrite ``chunks`` with the next message of rank ``frm`` of the group."""
        for piece in self._outer(chunks):
            self._parent.recv(piece, frm=self._peer_of("recv", frm))

    def recv_reduce(self, chunks: Chunks, frm: int | Sequence[int]) -> None:
        """Fold what ranks ``frm`` of the group send into ``chunks``."""
        mine, peers = self._parent.rank, folded(self.rank, frm)
        order = [mine if p == self.rank else self._peer_of("recv_reduce", p) for p in peers]
        for piece in self._outer(chunks):
            self._parent.recv_reduce(piece, frm=order)

    def copy(self, src: Chunks, dst: Chunks) -> None:
        """Copy ``src`` to ``dst``, both of this rank."""
        for source, target in self._pairs("copy", src, dst):
            if source != target:  # input and output of a group may be the same
                self._parent.copy(source, target)

    def reduce(self, src: Chunks, into: Chunks) -> None:
        """Fold ``src`` into ``into``, both of this rank."""
        for source, target in self._pairs("reduce", src, into):
            self._parent.reduce(source, target)

    def _peer_of(self, call: str, peer: int) -> int:
        return self._ranks[self._peer(call, peer)]

    def _pairs(self, call: str, src: Chunks, dst: Chunks) -> Iterator[tuple[Chunks, Chunks]]:
        require_chunks(self.rank, call, src, dst)
        if src.nchunks != dst.nchunks:
            raise ScheduleError(f"rank {self.rank}: {call} {src} to {dst}: the counts differ")
        pieces = self._outer(src), self._outer(dst)
        if [c.nchunks for c in pieces[0]] != [c.nchunks for c in pieces[1]]:
            raise ScheduleError(
                f"rank {self.rank}: {call} {src} to {dst}: the pieces of the group lie differently"
            )
        return zip(*pieces, strict=True)

    def _pieces(self, chunk: int) -> Sequence[int]:
        """Return the parent's chunks that make up ``chunk``."""
        n = self.nchunks
        if self._run is None:
            parts, left = divmod(n, len(self._cuts))
            whole = () if left else self._cuts[chunk // parts]
            if left or len(whole) % parts:
                raise ScheduleError(
                    f"rank {self.rank}: chunks({n}) of a group whose "
                    f"{len(self._cuts)} pieces are given"
                )
            width = len(whole) // parts
            return whole[chunk % parts * width : (chunk % parts + 1) * width]
        width, left = divmod(len(self._run), n)
        if left:
            raise ScheduleError(
                f"rank {self.rank}: chunks({n}) of a group that has {len(self._run)} chunks, want "
                "a divisor of that"
            )
        return self._run[chunk * width : (chunk + 1) * width]

    def _outer(self, chunks: Chunks) -> list[Chunks]:
        """Return the parent's ranges that are ``chunks``, each side by side."""
        require_chunks(self.rank, "a step of a group", chunks)
        self._chunks_fixed = True  # from now on their number has a meaning
        if chunks.buffer is Buffer.SCRATCH:
            return [self._outer_scratch(chunks)]
        parent = self._parent
        apart = chunks.buffer is Buffer.INPUT and not parent.collective.in_place
        array = parent.input if apart else parent.output
        places = [
            p for c in range(chunks.place, chunks.place + chunks.nchunks) for p in self._pieces(c)
        ]
        starts = [i for i, p in enumerate(places) if i == 0 or p != places[i - 1] + 1]
        ends = [*starts[1:], len(places)]
        return [array[places[i] : places[j - 1] + 1] for i, j in zip(starts, ends, strict=False)]

    def _outer_scratch(self, chunks: Chunks) -> Chunks:
        if self._run is None:
            raise ScheduleError(
                f"rank {self.rank}: {chunks} of a group whose pieces are given; only a group on "
                "one range of chunks has scratch"
            )
        width = len(self._pieces(0))
        self.nscratch = max(self.nscratch, chunks.place + chunks.nchunks)
        first = self._first_scratch + chunks.place * width
        return self._parent.scratch[first : first + chunks.nchunks * width]
