"""Chunks: a range of equal pieces of one of a rank's buffers, the unit an algorithm moves."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from operator import index as number
from typing import Any, NamedTuple

from pycoll.errors import ScheduleError, quoted


class Buffer(enum.IntEnum):
    """Where chunks lie."""

    INPUT = 0  #: read only; the same memory as OUTPUT when the caller works in place
    OUTPUT = 1  #: stands for the input until it is written
    SCRATCH = 2  #: this rank's own; a place may hold any chunk


BUFFER_NAMES = {Buffer.INPUT: "in", Buffer.OUTPUT: "out", Buffer.SCRATCH: "scratch"}


class Chunks(NamedTuple):
    """``nchunks`` places of a buffer from ``place`` on, holding chunks from ``chunk`` on."""

    buffer: Buffer
    place: int
    chunk: int  #: equals place in INPUT and OUTPUT; -1 in SCRATCH until the senders are known
    nchunks: int

    def __str__(self) -> str:
        at = f"{self.place}:{self.place + self.nchunks}" if self.nchunks != 1 else str(self.place)
        text = f"{BUFFER_NAMES[self.buffer]}[{at}]"
        return f"{text}@{self.chunk}" if self.buffer is Buffer.SCRATCH else text


def require_chunks(rank: int, call: str, *given: Chunks) -> None:
    """Check what a rank's algorithm gave to a method of its builder.

    Raises:
        ScheduleError: It is no range of chunks.
    """
    for chunks in given:
        if not isinstance(chunks, Chunks):
            if isinstance(chunks, ChunkArray):
                chunks.__getattr__("buffer")  # which says so
            raise ScheduleError(
                f"rank {rank}: {call} of {quoted(chunks)}, want chunks, such as b.output[0]"
            )


class ChunkArray:
    """A buffer as an algorithm sees it: ``x[i]`` wraps round, ``x[i:j]`` and ``x[:]`` do not."""

    def __init__(self, buffer: Buffer, nchunks: int) -> None:
        """Make the view; ``nchunks`` is 0 for scratch, which grows as it is used."""
        self._buffer = buffer
        self._nchunks = nchunks

    def __getitem__(self, index: int | slice) -> Chunks:
        """Return the chunk at ``index`` (modulo the number of chunks) or a range of chunks."""
        if isinstance(index, slice):
            return self._range(index)
        try:
            index = number(index)
        except TypeError:
            text = BUFFER_NAMES[self._buffer]
            raise ScheduleError(
                f"{text}[{quoted(index)}], want the number of a chunk or a range"
            ) from None
        if self._nchunks:
            # Made when asked for: there may be a chunk for each of 100,000 ranks.
            index %= self._nchunks
            return Chunks(self._buffer, index, index, 1)
        if index < 0:
            raise ScheduleError(f"scratch[{index}]: places of scratch are counted from 0")
        return Chunks(self._buffer, index, -1, 1)

    def __len__(self) -> int:
        return self._nchunks

    def __iter__(self) -> Iterator[Chunks]:
        """Yield every chunk; an index wraps round, so without this a loop would never end."""
        if not self._nchunks:
            raise ScheduleError("scratch has no end: name the places, such as scratch[0]")
        return (self[i] for i in range(self._nchunks))

    def __getattr__(self, name: str) -> Any:
        """Raise: nothing is missing here but what a range of chunks has, so one is wanted."""
        if name in Chunks._fields:
            text = BUFFER_NAMES[self._buffer]
            raise ScheduleError(
                f"{text} is a whole buffer, want chunks of it: {text}[i], {text}[:]"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def around(self, start: int, n: int) -> tuple[Chunks, ...]:
        """Return the ``n`` chunks from ``start`` on, wrapping round, as one or two ranges."""
        if not 1 <= n <= self._nchunks:
            name = BUFFER_NAMES[self._buffer]
            raise ScheduleError(
                f"{name}.around({start}, {n}): want 1 to {self._nchunks} chunks"
                if self._nchunks
                else f"{name}.around({start}, {n}): scratch has no end to wrap round"
            )
        start %= self._nchunks
        end = start + n
        if end <= self._nchunks:
            return (self[start:end],)
        return (self[start : self._nchunks], self[: end - self._nchunks])

    def _range(self, index: slice) -> Chunks:
        name, n = BUFFER_NAMES[self._buffer], self._nchunks
        start = 0 if index.start is None else index.start
        stop = n if index.stop is None else index.stop
        if index.step not in (None, 1):
            raise ScheduleError(f"{name}[{start}:{stop}:{index.step}]: a range has step 1")
        if start < 0 or stop <= start or (n and stop > n):
            limit = f"within 0:{n}" if n else "with both ends given, counted from 0"
            raise ScheduleError(f"{name}[{start}:{stop}]: want a range that is not empty, {limit}")
        chunk = -1 if self._buffer is Buffer.SCRATCH else start
        return Chunks(self._buffer, start, chunk, stop - start)
