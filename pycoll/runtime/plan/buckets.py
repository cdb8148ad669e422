"""A list of arrays as one call: small ones of a dtype share a message, big ones go alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pycoll.arrays import families, operands
from pycoll.arrays.dtype import require_reduced
from pycoll.arrays.view import ArrayView, written_twice
from pycoll.dtypes import DType, ReduceOp
from pycoll.errors import UnavailableError, UsageError
from pycoll.runtime.plan.call import Call

if TYPE_CHECKING:
    from pycoll.runtime.host.heap import Heap

#: From here an array is a message of its own: copying it would cost more than it saves.
ALONE_BYTES = 1 << 20
#: A shared message is at most this long, so that its buffer stays small.
SHARED_BYTES = 8 << 20

#: An array and where its result goes.
Pair = tuple[ArrayView, ArrayView]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Arrays of one dtype that travel together; a single one travels as it lies."""

    dtype: DType
    pairs: list[Pair]

    @property
    def count(self) -> int:
        """Elements of all arrays."""
        return sum(x.count for x, _ in self.pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.count * self.dtype.itemsize

    @property
    def pieces(self) -> tuple[int, ...]:
        """Elements of each array; nothing for one that travels alone."""
        return () if len(self.pairs) == 1 else tuple(x.count for x, _ in self.pairs)

    def call(self, name: str, op: ReduceOp, root: int, fixed: bool) -> Call:
        """Return what all ranks ask for alike."""
        return Call(name, op, self.dtype, self.count, root, pieces=self.pieces, fixed=fixed)


def pairs(xs: Sequence[Any], outs: Any, who: str, reduces: bool = True) -> list[Pair]:
    """Look at every array of a list and at where its result goes (None: in place).

    Raises:
        UsageError: The lists differ in length, an array cannot be served (or, where the collective
            ``reduces``, not be reduced), or arrays share memory that is written.
    """
    if outs is not None and not isinstance(outs, list | tuple):
        raise UsageError(f"{who}: x is a list of arrays and out is a {type(outs).__name__}")
    if outs is not None and len(outs) != len(xs):
        raise UsageError(f"{who}: out has {len(outs)} arrays, want {len(xs)} as x has")
    found = []
    for i, x in enumerate(xs):
        view = families.look(x, f"{who}: x[{i}]")
        if reduces:
            require_reduced(view.dtype, f"{who}: x[{i}]")
        elif outs is None:
            operands.require_writable(view, f"{who}: x[{i}]")
        out = None if outs is None else outs[i]
        found.append((view, operands.result(view, out, f"{who}, array {i}")))
    # In place, an array is its own result.
    read = [(x, False, i) for i, (x, y) in enumerate(found) if x.address != y.address]
    spans = [(y, True, i) for i, (_, y) in enumerate(found)] + read
    twice = written_twice((view, written) for view, written, _ in spans)
    if twice is not None:
        raise UsageError(
            f"{who}: array {spans[twice][2]} shares memory with another array whose result is "
            "written there; pass every array once"
        )
    return found


def buckets(found: Iterable[Pair]) -> list[Bucket]:
    """Group arrays into messages, the same on all ranks whose arrays are alike."""
    done: list[Bucket] = []
    open_: dict[DType, tuple[Bucket, int]] = {}  # and its bytes so far
    for x, out in found:
        if x.nbytes >= ALONE_BYTES:
            done.append(Bucket(x.dtype, [(x, out)]))
            continue
        message, nbytes = open_.get(x.dtype, (None, 0))
        if message is None or nbytes + x.nbytes > SHARED_BYTES:
            message, nbytes = Bucket(x.dtype, []), 0
            done.append(message)
        message.pairs.append((x, out))
        open_[x.dtype] = message, nbytes + x.nbytes
    return done


class Packing:
    """The buffer that a shared message lies in."""

    def __init__(self, message: Bucket, buffer: Any) -> None:
        self._pairs = message.pairs
        self._buffer = buffer  # keeps the memory alive
        self.address: int = buffer.__array_interface__["data"][0]

    def pack(self) -> None:
        """Copy the arrays in."""
        place = self.address
        for x, _ in self._pairs:
            ctypes.memmove(place, x.address, x.nbytes)
            place += x.nbytes

    def unpack(self) -> None:
        """Copy the results out."""
        place = self.address
        for x, out in self._pairs:
            ctypes.memmove(out.address, place, x.nbytes)
            place += x.nbytes


class Buffers:
    """The buffer that blocking coalesced calls use again and again."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._buffer: Any = None

    def shared(self, nbytes: int) -> Any:
        """Return at least ``nbytes`` bytes that the next call may use, too."""
        if self._buffer is None or self._buffer.size < nbytes:
            self._buffer = self.own(max(nbytes, 1 << 16))
        return self._buffer

    def own(self, nbytes: int) -> Any:
        """Return ``nbytes`` bytes that nobody else uses."""
        import numpy

        try:
            return self._heap.empty(max(1, nbytes), "uint8")
        except UnavailableError:  # full, perhaps on this rank alone: the others need not know
            return numpy.empty(max(1, nbytes), numpy.uint8)
