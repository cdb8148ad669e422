"""Part: some of the ranks, and what of the message they work on among themselves."""

from __future__ import annotations

from collections.abc import Sequence

from pycoll.errors import ScheduleError
from pycoll.schedule.chunk import Chunks


class Part:
    """Ranks and chunks of a group, in the numbers of the builder that it belongs to.

    Args:
        rank: Whose side is written, as the builder counts.
        ranks: Of the group; rank i there is ``ranks[i]``.
        chunks: The builder's chunks as one range, to be cut as the algorithm asks, or already in
            pieces. None: all of them.
        nchunks: Number of the builder's chunks.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        chunks: Chunks | Sequence[Sequence[int]] | None,
        nchunks: int,
    ) -> None:
        if rank not in ranks or len(set(ranks)) != len(ranks):
            raise ScheduleError(
                f"rank {rank}: within {tuple(ranks)}, want ranks once each, {rank} among them"
            )
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(rank)
        self._run: range | None = None
        self._cuts: tuple[tuple[int, ...], ...] = ()
        if chunks is None:
            self._run = range(nchunks)
        elif isinstance(chunks, Chunks):
            self._run = range(chunks.place, chunks.place + chunks.nchunks)
        else:
            self._cuts = tuple(map(tuple, chunks))

    def pieces(self, chunk: int, n: int) -> Sequence[int]:
        """Return the builder's chunks that make up ``chunk`` of ``n``."""
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

    def runs(self, chunks: Chunks, n: int) -> list[range]:
        """Return the builder's ranges that are ``chunks`` of ``n``, each side by side."""
        places = [
            p for c in range(chunks.place, chunks.place + chunks.nchunks) for p in self.pieces(c, n)
        ]
        starts = [i for i, p in enumerate(places) if i == 0 or p != places[i - 1] + 1]
        ends = [*starts[1:], len(places)]
        return [range(places[i], places[j - 1] + 1) for i, j in zip(starts, ends, strict=False)]

    def scratch(self, chunks: Chunks, n: int) -> range:
        """Return the builder's places of scratch, counted from the group's first."""
        if self._run is None:
            raise ScheduleError(
                f"rank {self.rank}: {chunks} of a group whose pieces are given; only a group on "
                "one range of chunks has scratch"
            )
        width = len(self.pieces(0, n))
        return range(chunks.place * width, (chunks.place + chunks.nchunks) * width)
