"""Data for a check that is exact: small integers, whose reduction no order of folding can round."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pycoll.benchmark.datatypes import element, is_integer, most_exact
from pycoll.benchmark.operation import Operation
from pycoll.dtypes import ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]

_STEP = 61  #: how far apart in the common pattern the data of two neighbouring ranks begin


class Lengths(NamedTuple):
    """How a message is cut into a block for each rank."""

    starts: tuple[int, ...]  #: of each block, and the end of the last

    @classmethod
    def of(cls, operation: Operation, count: int, size: int) -> Lengths:
        """Cut a message: equally, or in proportion to 1, 2, 3 ... where blocks are counted."""
        if operation.counted:
            return cls(tuple(count * r * (r + 1) // (size * (size + 1)) for r in range(size + 1)))
        return cls(tuple(count // size * r for r in range(size + 1)))

    def turned(self, by: int) -> Lengths:
        """Return the cut in which rank r's block is as long as here that of rank r - by."""
        size = len(self.starts) - 1
        counts = [self.counts[(r - by) % size] for r in range(size)]
        return Lengths((0, *itertools.accumulate(counts)))

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of each block."""
        return tuple(b - a for a, b in itertools.pairwise(self.starts))

    def cut(self, rank: int) -> slice:
        """Return where the block of a rank is."""
        return slice(self.starts[rank], self.starts[rank + 1])


class Problem:
    """One rank's input and the result that it must hold, at every element.

    Where a rank has no input or no output, its array is empty.
    """

    def __init__(
        self,
        operation: Operation,
        count: int,
        dtype: str,
        op: ReduceOp,
        rank: int,
        size: int,
        root: int = 0,
        window: int = 1,
    ) -> None:
        """Make the data.

        Args:
            operation: What is to be done.
            count: Elements of a message.
            dtype: Of the elements.
            op: How they are reduced, if at all.
            rank: Of this process.
            size: Number of ranks.
            root: The rank that has, or gets, what only one has or gets.
            window: Messages of one call, one behind the other in memory.
        """
        self.operation, self.op, self.rank, self.size = operation, op, rank, size
        self.count, self.root, self.window = count, root, window
        self.whole = count * window  #: elements of all messages of a call
        self.lengths = Lengths.of(operation, count, size)
        kind = element(dtype)
        # Every rank cuts its data out of one pattern, so that the expected result costs one
        # pass per rank instead of one random generation per pair of ranks.
        random = np.random.default_rng((count, size))
        bound = min(8, max(1, most_exact(kind) // size))
        low = 0 if kind.kind == "u" else -bound
        pattern = random.integers(low, bound + 1, self.whole + _STEP * size, dtype=np.int8)
        if op is ReduceOp.PROD:  # integers wrap, odd ones never to 0; a float's 1 and -1 stay exact
            odd = pattern | np.int8(1)
            pattern = odd if is_integer(kind) else np.where(pattern % 2, 1, -1)
        values = pattern.astype(kind)
        parts = [values[_STEP * r : _STEP * r + self.whole] for r in range(size)]
        self.input: Array = parts[rank][self._taken()].copy()
        self.expected: Array = self._result(parts)

    @property
    def other(self) -> int | None:
        """The rank that this one sends to or receives from in pairs; None if it has none."""
        if self.operation.windowed:
            half = self.size // 2
            return None if self.rank >= 2 * half else (self.rank + half) % (2 * half)
        return self.rank ^ 1 if self.rank ^ 1 < self.size else None

    @property
    def sends(self) -> bool:
        """Whether this rank sends windows."""
        both = self.operation.name == "bibw"
        return self.other is not None and (both or self.rank < self.other)

    @property
    def receives(self) -> bool:
        """Whether this rank receives windows."""
        both = self.operation.name == "bibw"
        return self.other is not None and (both or self.rank > self.other)

    def messages(self, array: Array) -> list[Array]:
        """Cut the messages of a window out of an array."""
        return [array[i * self.count : (i + 1) * self.count] for i in range(self.window)]

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return self.count * self.input.itemsize

    def arrays(self, memory: Array, more: Array) -> tuple[Array, Array]:
        """Cut input and output out of memory for a message each; of `memory` both if it is both."""
        whole, n, m = memory[: self.whole], self.input.size, self.expected.size
        if self.operation.name == "broadcast":  # its output is the input's memory anyway
            return whole, whole
        if memory is not more:
            return memory[:n], more[:m]
        own = self.lengths.starts[self.rank]
        x = whole[own : own + n] if self.operation.takes == "own" else whole[:n]
        out = whole[own : own + m] if self.operation.gives == "own" else whole[:m]
        return x, (x if n == m == self.count else out)

    def reset(self, x: Array, out: Array) -> None:
        """Give ``x`` its input; ``out``, where that is other memory, something wrong everywhere."""
        np.invert(self.expected.view(np.uint8), out=out.view(np.uint8))
        np.copyto(x[: self.input.size], self.input)

    def rest(self, x: Array) -> None:
        """Make ``x`` hold what stays itself however often it is reduced in place."""
        if self.op is ReduceOp.SUM:
            x.fill(0)
        elif self.op is ReduceOp.PROD:
            x.fill(1)

    def check(
        self, run: Callable[[], object], x: Array, out: Array, gather: Callable[[Any], list[Any]]
    ) -> int:
        """Make a call from fresh arrays; return how many elements of its result are wrong."""
        self.reset(x, out)
        run()
        return self.wrong(out)

    def wrong(self, out: Array) -> int:
        """Return how many elements of ``out`` are not what they must be."""
        if out.dtype.kind == "b":  # to numpy every byte but 0 is True, and poison is such a byte
            return int(np.count_nonzero(out.view(np.uint8) != self.expected.view(np.uint8)))
        return int(np.count_nonzero(out != self.expected))

    def _taken(self) -> slice:
        """Return which part of its data a rank puts in."""
        nothing = slice(0)
        if self.operation.windowed:
            return slice(None) if self.sends else nothing
        if self.operation.takes == "root":
            return slice(None) if self.rank == self.root else nothing
        return self.lengths.cut(self.rank) if self.operation.takes == "own" else slice(None)

    def _result(self, parts: list[Array]) -> Array:
        name, rank, size = self.operation.name, self.rank, self.size
        if self.operation.windowed:
            found = self.receives and self.other is not None
            return parts[self.other or 0][: None if found else 0].copy()
        if self.operation.reduces:
            total = _fold(self.op, parts)
        elif self.operation.takes == "own":
            total = np.concatenate([part[self.lengths.cut(r)] for r, part in enumerate(parts)])
        elif name.startswith("alltoall"):
            cuts = [self.sent_by(r).cut(rank) for r in range(size)]
            total = np.concatenate([part[cut] for part, cut in zip(parts, cuts, strict=True)])
        elif name == "sendrecv":
            total = parts[rank - 1].copy()
        elif name == "pingpong":
            total = parts[rank - rank % 2][: 0 if self.other is None else None].copy()
        else:  # broadcast, scatter, barrier
            total = parts[self.root].copy()
        if self.operation.gives == "own":
            return total[self.lengths.cut(rank)].copy()
        return total[: 0 if self.operation.gives == "root" and rank != self.root else None]

    def sent_by(self, rank: int) -> Lengths:
        """Return how all-to-all cuts the input of a rank: each is as long, and each receives so."""
        return self.lengths.turned(rank)

    def received(self) -> Lengths:
        """Return how all-to-all puts together the output of this rank."""
        counts = [self.sent_by(r).counts[self.rank] for r in range(self.size)]
        return Lengths((0, *itertools.accumulate(counts)))


def _fold(op: ReduceOp, parts: list[Array]) -> Array:
    total: Array = parts[0].copy()
    ufunc = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
    for part in parts[1:]:
        ufunc.get(op, np.add)(total, part, out=total)
    if op is ReduceOp.AVG:
        size, kind = len(parts), total.dtype
        if not is_integer(kind):
            wide = np.float32 if kind.itemsize == 2 else kind
            total = np.divide(total, np.asarray(size, wide), dtype=wide).astype(kind)
        else:  # C divides towards zero
            quotient = np.abs(total.astype(np.int64)) // size
            total = (np.sign(total.astype(np.int64)) * quotient).astype(kind)
    return total
