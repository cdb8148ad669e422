"""ScheduleBuilder: the only object that an algorithm sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index

from pycoll.errors import ScheduleError, UsageError, counted, quoted
from pycoll.schedule.chunk import Buffer, ChunkArray, Chunks, require_chunks
from pycoll.schedule.collective import Collective, allreduce
from pycoll.schedule.part import Part
from pycoll.schedule.placement import FLAT, Placement
from pycoll.schedule.step import Kind, Step, places

_MOST_RANKS = 1 << 20
_MOST_CHUNKS = 1 << 20  #: a list of them is made
CHANNELS = 4  #: ordered streams that a rank may open


class ScheduleBuilder:
    """Collects one rank's steps; the order of the calls is their meaning.

    Attributes:
        size: Number of ranks.
        rank: The rank whose steps these are; the root of a rooted collective is rank 0.
        collective: What is to be computed.
        input: The chunks that the rank begins with; they cannot be written.
        output: The chunks that it ends with. In place they are those of ``input``.
        scratch: Chunks beside them, as many as are used.
        steps: What has been written so far.

    Raises:
        UsageError: ``size``, ``rank``, ``collective`` or ``placement`` is none such.

    Example:
        >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
        >>> b.send(b.output[0], to=1)
        >>> len(b.steps)
        1
    """

    def __init__(
        self,
        size: int,
        rank: int,
        collective: Collective = allreduce,
        placement: Placement = FLAT,
    ) -> None:
        """Start an empty side of a schedule for ``rank`` of ``size`` ranks."""
        _check(size, rank, collective, placement)
        self.size = size
        self.rank = rank
        self.collective = collective
        self.asked_placement = False  #: whether the algorithm has looked at it
        self._placement = placement
        self.scratch = ChunkArray(Buffer.SCRATCH, 0)
        self.steps: list[Step] = []
        self.nscratch = 0
        self._channel = 0
        self._chunks_fixed = False
        self._written: set[int] = set()
        self._scratch_channel: dict[int, int] = {}
        self._cut(size)

    def __repr__(self) -> str:
        what = f"{self.collective.name}, rank {self.rank} of {self.size}"
        return f"<pycoll.ScheduleBuilder {what}: {counted(len(self.steps), 'step')}>"

    @property
    def nchunks(self) -> int:
        """Number of pieces that the message is cut into."""
        return len(self.output)

    @property
    def placement(self) -> Placement:
        """Which ranks lie close together; an algorithm that reads it is proved per placement."""
        self.asked_placement = True
        return self._placement

    def chunks(self, n: int) -> None:
        """Cut the message into chunks; call it first, or there are ``size`` of them.

        Args:
            n: Number of chunks, of all blocks together.

        Raises:
            ScheduleError: It is not the first call, or the blocks cannot be cut so.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.chunks(4)
            >>> b.nchunks
            4
        """
        if self._chunks_fixed or self.steps:
            raise ScheduleError(f"rank {self.rank}: chunks({n}) must be the first call, once")
        if not isinstance(n, int) or not 1 <= n <= _MOST_CHUNKS:
            raise ScheduleError(
                f"rank {self.rank}: chunks({quoted(n)}), want an int of at least 1 and at most "
                f"{_MOST_CHUNKS}"
            )
        try:
            self.collective.check_chunks(n, self.size)
        except ScheduleError as error:
            raise ScheduleError(f"rank {self.rank}: chunks({n}): {error}") from None
        self._chunks_fixed = True
        self._cut(n)

    def within(
        self,
        ranks: Sequence[int],
        chunks: Chunks | Sequence[Sequence[int]] | None = None,
        collective: Collective | None = None,
    ) -> ScheduleBuilder:
        """Return a builder for ``ranks`` alone, on which another algorithm can be called.

        Args:
            ranks: This rank and those that do the same with it; rank i there is ``ranks[i]``.
            chunks: What of the message they work on: a range, cut there into equal runs, or the
                numbers of the chunks that make up each chunk there. Default: all of it.
            collective: What they compute on that; default: the same as here.

        Returns:
            The builder; its steps go here.

        Raises:
            ScheduleError: This rank is not among ``ranks``, or one is there twice.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> pycoll.algorithms.get("ring")(b.within([0, 1]))
            >>> len(b.steps)
            4
        """
        try:
            ranks = tuple(index(rank) for rank in ranks)
            pieces = chunks
            if not (chunks is None or isinstance(chunks, Chunks)):
                pieces = tuple(tuple(index(chunk) for chunk in piece) for piece in chunks)
        except TypeError:
            raise ScheduleError(
                f"rank {self.rank}: within {quoted(ranks)} on {quoted(chunks)}, want ranks, and a "
                "range of chunks or lists of their numbers"
            ) from None
        if not (collective is None or isinstance(collective, Collective)):
            raise ScheduleError(
                f"rank {self.rank}: within: collective is {quoted(collective)}, want one such as "
                "pycoll.allreduce"
            )
        part = Part(self.rank, ranks, pieces, self.nchunks)
        return Group(self, part, collective or self.collective)

    def _cut(self, n: int) -> None:
        self.input = ChunkArray(Buffer.INPUT, n)
        self.output = ChunkArray(Buffer.OUTPUT, n)
        self._given = self.collective.in_extent(self.rank, self.size, n)

    @contextmanager
    def channel(self, channel: int) -> Iterator[None]:
        """Open an ordered stream, for a ``with`` block; steps outside of any are in channel 0.

        Args:
            channel: Its number, 0 to 3.

        Returns:
            What a ``with`` statement takes.

        Raises:
            ScheduleError: There is no such channel.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> with b.channel(1):
            ...     b.send(b.output[0], to=1)
        """
        if not isinstance(channel, int) or channel not in range(CHANNELS):
            raise ScheduleError(
                f"rank {self.rank}: channel {quoted(channel)}, want 0..{CHANNELS - 1}"
            )
        outer, self._channel = self._channel, channel
        try:
            yield
        finally:
            self._channel = outer

    def send(self, chunks: Chunks, to: int) -> None:
        """Send chunks to another rank.

        Args:
            chunks: Neighbouring chunks, such as ``b.output[1:3]``.
            to: The rank that receives them.

        Raises:
            ScheduleError: There is no such rank, or the chunks have not been written.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.send(b.output[:], to=1)
        """
        require_chunks(self.rank, "send", chunks)
        peer = self._peer("send", to)
        self._reading(chunks)
        self._add(Step(Kind.SEND, self._channel, chunks, (peer,)))

    def recv(self, chunks: Chunks, frm: int) -> None:
        """Overwrite chunks with the next message of another rank.

        Args:
            chunks: Neighbouring chunks, as many as are sent.
            frm: The rank that sends them.

        Raises:
            ScheduleError: There is no such rank, or the chunks cannot be written.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.recv(b.output[:], frm=1)
        """
        require_chunks(self.rank, "recv", chunks)
        peer = self._peer("recv", frm)
        self._writing(chunks)
        self._add(Step(Kind.RECV, self._channel, chunks, (peer,)))

    def recv_reduce(self, chunks: Chunks, frm: int | Sequence[int]) -> None:
        """Fold what other ranks send into chunks.

        With one rank: the present value, then the incoming one. With a sequence the fold is in
        the order listed; this rank, listed once, stands for the present value.

        Args:
            chunks: Neighbouring chunks, as many as are sent.
            frm: The rank that sends them, or ranks.

        Raises:
            ScheduleError: There is no such rank, the collective reduces nothing, or the chunks
                hold nothing.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.recv_reduce(b.output[:], frm=1)
        """
        require_chunks(self.rank, "recv_reduce", chunks)
        listed = folded(self.rank, frm)
        order = tuple(self.rank if p == self.rank else self._peer("recv_reduce", p) for p in listed)
        if order.count(self.rank) != 1 or len(set(order)) != len(order):
            raise ScheduleError(
                f"rank {self.rank}: recv_reduce from {order}, want every rank at most once and "
                f"{self.rank} (the present value) exactly once"
            )
        if len(order) == 1:
            return
        self._folding("recv_reduce")
        self._reading(chunks)
        self._writing(chunks)
        self._add(Step(Kind.RECV_REDUCE, self._channel, chunks, order))

    def copy(self, src: Chunks, dst: Chunks) -> None:
        """Copy chunks of this rank.

        Args:
            src: Where they are.
            dst: Where they go; as many.

        Raises:
            ScheduleError: The counts differ, or ``dst`` cannot be written.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.copy(b.output[0], b.scratch[0])
        """
        require_chunks(self.rank, "copy", src, dst)
        self._local("copy", src, dst)
        self._writing(dst)
        self._add(Step(Kind.COPY, self._channel, dst, source=src))

    def reduce(self, src: Chunks, into: Chunks) -> None:
        """Fold chunks of this rank into others of it.

        Args:
            src: What is folded.
            into: The left operand, and the result; as many.

        Raises:
            ScheduleError: The counts differ, the collective reduces nothing, or the chunks hold
                nothing.

        Example:
            >>> b = pycoll.ScheduleBuilder(size=2, rank=0)
            >>> b.recv(b.scratch[0], frm=1)
            >>> b.reduce(b.scratch[0], into=b.output[0])
        """
        self._folding("reduce")
        require_chunks(self.rank, "reduce", src, into)
        self._local("reduce", src, into)
        self._reading(into)
        self._writing(into)
        self._add(Step(Kind.REDUCE, self._channel, into, source=src))

    def _add(self, step: Step) -> None:
        self.steps.append(step)

    def _peer(self, call: str, peer: int) -> int:
        try:
            number = index(peer)  # of numpy, too
        except TypeError:
            number = -1
        if not 0 <= number < self.size or number == self.rank:
            raise ScheduleError(
                f"rank {self.rank}: {call} with rank {quoted(peer)}, want another of "
                f"0..{self.size - 1}"
            )
        return number

    def _folding(self, call: str) -> None:
        if not self.collective.reduces:
            name = self.collective.name
            raise ScheduleError(f"rank {self.rank}: {call}: {name} has no operation to fold with")

    def _local(self, call: str, src: Chunks, dst: Chunks) -> None:
        if src.nchunks != dst.nchunks:
            raise ScheduleError(f"rank {self.rank}: {call} {src} to {dst}: the counts differ")
        if (
            Buffer.SCRATCH not in (src.buffer, dst.buffer)
            and src.chunk != dst.chunk
            and not self.collective.equal_blocks
        ):
            raise ScheduleError(
                f"rank {self.rank}: {call} {src} to {dst}: place i of in and out holds chunk i; "
                "only scratch may hold any"
            )
        self._reading(src)

    def _reading(self, chunks: Chunks) -> None:
        if chunks.buffer is Buffer.SCRATCH:
            self._touch_scratch(chunks)
            missing = [p for p in places(chunks) if p not in self._written]
            if missing:
                raise ScheduleError(
                    f"rank {self.rank}: reads scratch[{-1 - missing[0]}], which nothing has written"
                )
        elif chunks.buffer is Buffer.OUTPUT:
            self._reading_output(chunks)
        elif not self._has_input(chunks):
            low, high = self._given.start, self._given.stop
            raise ScheduleError(
                f"rank {self.rank}: reads {chunks}; the input that {self.collective.name} gives "
                f"this rank is " + (f"in[{low}:{high}]" if high > low else "empty")
            )
        elif self.collective.in_place and not self._written.isdisjoint(places(chunks)):
            raise ScheduleError(
                f"rank {self.rank}: reads {chunks} after out was written there; in place they are "
                "the same memory"
            )

    def _reading_output(self, chunks: Chunks) -> None:
        stands_for_input = self.collective.in_place
        if stands_for_input and self._has_input(chunks):
            return
        for p in places(chunks):
            if p not in self._written and not (stands_for_input and p in self._given):
                raise ScheduleError(
                    f"rank {self.rank}: reads out[{p}], which nothing has written"
                    + (" and the input does not hold" if stands_for_input else "")
                )

    def _has_input(self, chunks: Chunks) -> bool:
        given = self._given
        return given.start <= chunks.place and chunks.place + chunks.nchunks <= given.stop

    def _writing(self, chunks: Chunks) -> None:
        if chunks.buffer is Buffer.INPUT:
            raise ScheduleError(f"rank {self.rank}: writes {chunks}; the input is read only")
        if chunks.buffer is Buffer.SCRATCH:
            self._touch_scratch(chunks)
            self.nscratch = max(self.nscratch, chunks.place + chunks.nchunks)
        self._written.update(places(chunks))

    def _touch_scratch(self, chunks: Chunks) -> None:
        for place in range(chunks.place, chunks.place + chunks.nchunks):
            channel = self._scratch_channel.setdefault(place, self._channel)
            if channel != self._channel:
                raise ScheduleError(
                    f"rank {self.rank}: scratch[{place}] is used from channels {channel} and "
                    f"{self._channel}; scratch belongs to one channel"
                )


class Group(ScheduleBuilder):
    """A ScheduleBuilder for a part of another one, into which it writes; see `within`.

    Its input and its output are both the parent's output, as what a group works on may have been
    computed before; only where the collective keeps them apart is its input the parent's.
    """

    def __init__(self, parent: ScheduleBuilder, part: Part, collective: Collective) -> None:
        self._parent = parent
        self._part = part
        self._first_scratch = parent.nscratch
        super().__init__(len(part.ranks), part.rank, collective)

    @property
    def placement(self) -> Placement:
        """Which ranks of the group lie close together."""
        return self._parent.placement.among(self._part.ranks)

    def chunks(self, n: int) -> None:
        """Cut the group's part of the message into ``n`` chunks; they need not be equal."""
        super().chunks(n)
        self._part.pieces(0, n)

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
        return self._part.ranks[self._peer(call, peer)]

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

    def _outer(self, chunks: Chunks) -> list[Chunks]:
        """Return the parent's ranges that are ``chunks``, each side by side."""
        require_chunks(self.rank, "a step of a group", chunks)
        self._chunks_fixed = True  # from now on their number has a meaning
        parent, part = self._parent, self._part
        if chunks.buffer is Buffer.SCRATCH:
            places = part.scratch(chunks, self.nchunks)
            self.nscratch = max(self.nscratch, chunks.place + chunks.nchunks)
            first = self._first_scratch
            return [parent.scratch[first + places.start : first + places.stop]]
        apart = chunks.buffer is Buffer.INPUT and not parent.collective.in_place
        array = parent.input if apart else parent.output
        return [array[run.start : run.stop] for run in part.runs(chunks, self.nchunks)]


def folded(rank: int, frm: int | Sequence[int]) -> tuple[int, ...]:
    """Return the order of a fold: of one rank, the present value and then what it sends."""
    try:
        return tuple(frm)  # type: ignore[arg-type]
    except TypeError:
        return (rank, frm)  # type: ignore[return-value]


def _check(size: int, rank: int, collective: Collective, placement: Placement) -> None:
    if not isinstance(size, int) or not 1 <= size <= _MOST_RANKS:
        raise UsageError(
            f"ScheduleBuilder: size is {quoted(size)}, want an integer from 1 to {_MOST_RANKS}"
        )
    if not isinstance(rank, int) or not 0 <= rank < size:
        raise UsageError(f"ScheduleBuilder: rank is {quoted(rank)}, want 0 to {size - 1}")
    if not isinstance(collective, Collective):
        raise UsageError(
            f"ScheduleBuilder: collective is {quoted(collective)}, want one such as "
            "pycoll.allreduce"
        )
    if not isinstance(placement, Placement):
        raise UsageError(f"ScheduleBuilder: placement is {quoted(placement)}, want a Placement")
