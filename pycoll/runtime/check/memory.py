"""Memory: the bytes of a message wherever its arrays lie, and memory of a check's own."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pycoll.errors import UnavailableError
from pycoll.runtime.native import bindings

if TYPE_CHECKING:
    import numpy

    from pycoll.arrays.view import ArrayView
    from pycoll.runtime.host.heap import Heap

    Octets = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

#: What is compared at a time: it stays in a core's cache.
_COMPARED = 256 << 10
_LINE = 64


def octets(address: int, nbytes: int) -> Octets:
    """Return memory of this process as an array that does not keep it alive."""
    import numpy

    if nbytes == 0:
        return numpy.empty(0, numpy.uint8)
    return numpy.frombuffer(bindings.heap_buffer(address, nbytes), numpy.uint8)


class Message:
    """The bytes of some pieces of memory, one behind the other."""

    def __init__(self, pieces: Iterable[Octets]) -> None:
        self.pieces = list(pieces)
        self.nbytes = sum(piece.nbytes for piece in self.pieces)

    @classmethod
    def of(cls, views: Iterable[ArrayView]) -> Message:
        """Return that of arrays, which somebody else keeps alive."""
        return cls(octets(view.address, view.nbytes) for view in views)

    def part(self, start: int, stop: int) -> Message:
        """Return the bytes from ``start`` to ``stop``, where they lie."""
        found, at = [], 0
        for piece in self.pieces:
            low, high = max(start - at, 0), min(stop - at, piece.nbytes)
            if low < high:
                found.append(piece[low:high])
            at += piece.nbytes
        return Message(found)

    def checksum(self) -> int:
        """Return the CRC-32 of all bytes."""
        found = 0
        for piece in self.pieces:
            found = zlib.crc32(piece.data, found)
        return found

    def to_bytes(self) -> bytes:
        """Return a copy."""
        return b"".join(piece.tobytes() for piece in self.pieces)

    def copy_to(self, other: Message) -> None:
        """Write the bytes into another message, of the same length."""
        for _, mine, theirs in _side_by_side(self, other):
            theirs[:] = mine

    def differing(self, other: Message) -> tuple[int, int] | None:
        """Return the first byte that differs from another message's, and the last; None: none."""
        first = last = -1
        for at, mine, theirs in _side_by_side(self, other):
            for low in range(0, mine.nbytes, _COMPARED):
                a, b = mine[low : low + _COMPARED], theirs[low : low + _COMPARED]
                whole = (a.nbytes | a.ctypes.data | b.ctypes.data) % 8 == 0  # eight at a time
                if whole and not (a.view("u8") != b.view("u8")).any():
                    continue
                places = (a != b).nonzero()[0]
                if places.size:
                    first = at + low + int(places[0]) if first < 0 else first
                    last = at + low + int(places[-1])
        return None if first < 0 else (first, last)


def _side_by_side(a: Message, b: Message) -> Iterator[tuple[int, Octets, Octets]]:
    """Yield pieces of two messages that are equally long, with where they begin."""
    ours, theirs, at = list(a.pieces), list(b.pieces), 0
    while ours and theirs:
        n = min(ours[0].nbytes, theirs[0].nbytes)
        yield at, ours[0][:n], theirs[0][:n]
        at += n
        for left in (ours, theirs):
            left[0] = left[0][n:]
            if left[0].nbytes == 0:
                del left[0]


class Room:
    """Memory of a communicator's checks, kept for the next one."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._kept: dict[str, Octets] = {}

    def like(self, role: str, view: ArrayView) -> Octets | None:
        """Return memory that calls treat as they treat an array.

        A call whose arrays all lie in the heap may run another program than one whose arrays do
        not. What begins at the same place of a cache line is folded by the same instructions.

        Args:
            role: What it is for: memory for another role is other memory.
            view: The array, which has as many bytes.

        Returns:
            The memory; None: the array is of the heap, which has no room left.
        """
        if not self._heap.holds(view.address, view.nbytes):
            return self.plain(role, view.nbytes, view.address % _LINE)
        try:
            made: Octets = self._heap.empty(view.nbytes, "uint8")
        except UnavailableError:
            return None
        return made

    def plain(self, role: str, nbytes: int, shift: int = 0) -> Octets:
        """Return memory of this process, ``shift`` bytes behind the begin of a cache line."""
        import numpy

        kept = self._kept.get(role)
        if kept is None or kept.nbytes < nbytes + 2 * _LINE:
            kept = self._kept[role] = numpy.empty(nbytes + 2 * _LINE, numpy.uint8)
        begin = -kept.ctypes.data % _LINE + shift
        return kept[begin : begin + nbytes]
