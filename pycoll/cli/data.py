"""Data for a check that is exact: small integers, whose reduction no order of folding can round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pycoll.dtypes import ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]

_STEP = 61  #: how far apart in the common pattern the data of two neighbouring ranks begin


class Operation(NamedTuple):
    """What is timed: a collective, or ranks that send to one another.

    A message is all blocks together, as nccl-tests counts it. The time of a message that crosses
    the busiest wire once, at full speed, is nbytes / busbw: busbw is algbw times `crossings`.
    """

    name: str
    crossings: Callable[[int], float]  #: as nccl-tests has them
    takes: str  #: what the input is: "all" blocks, the "own" one, or all at the "root" only
    gives: str  #: what the output is, alike
    reduces: bool = False
    in_place: bool = True  #: input and output may be one memory
    rooted: bool = False

    @property
    def blocks(self) -> bool:
        """Whether a message is one block for each rank."""
        return "own" in (self.takes, self.gives) or self.name == "alltoall"


def _once(size: int) -> float:
    return 1.0


def _others(size: int) -> float:
    return (size - 1) / size


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("allreduce", lambda n: 2 * (n - 1) / n, "all", "all", reduces=True),
        Operation("broadcast", _once, "root", "all", rooted=True),
        Operation("reduce", _once, "all", "root", reduces=True, rooted=True),
        Operation("allgather", _others, "own", "all"),
        Operation("reduce_scatter", _others, "all", "own", reduces=True),
        Operation("alltoall", _others, "all", "all", in_place=False),
        Operation("gather", _others, "own", "root", rooted=True),
        Operation("scatter", _others, "root", "own", rooted=True),
        # Every rank sends to the next one round a ring.
        Operation("sendrecv", _once, "all", "all", in_place=False),
        # Rank 0 sends to rank 1, which sends it back; so do 2 and 3, and so on.
        Operation("pingpong", lambda n: 2.0, "all", "all", in_place=False),
    )
}


class Problem:
    """One rank's input and the result that it must hold, at every element.

    Where a rank has no input or no output, its array is empty.
    """

    def __init__(
        self, operation: Operation, count: int, dtype: str, op: ReduceOp, rank: int, size: int
    ) -> None:
        self.operation, self.op, self.rank, self.size = operation, op, rank, size
        self.count = count
        self.block = count // size if operation.blocks else count
        # Every rank cuts its data out of one pattern, so that the expected result costs one
        # pass per rank instead of one random generation per pair of ranks.
        random = np.random.default_rng((count, size))
        kind = np.dtype(dtype).kind
        pattern = random.integers(0 if kind == "u" else -8, 9, count + _STEP * size, dtype=np.int8)
        if op is ReduceOp.PROD:  # integers wrap, odd ones never to 0; a float's 1 and -1 stay exact
            pattern = pattern | np.int8(1) if kind != "f" else np.where(pattern % 2, 1, -1)
        values = pattern.astype(dtype)
        parts = [values[_STEP * r : _STEP * r + count] for r in range(size)]
        own = slice(rank * self.block, (rank + 1) * self.block)
        takes = {"all": slice(None), "own": own, "root": slice(0 if rank else None)}
        self.input: Array = parts[rank][takes[operation.takes]].copy()
        self.expected: Array = self._result(parts, own)

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return self.count * self.input.itemsize

    def arrays(self, memory: Array, more: Array) -> tuple[Array, Array]:
        """Cut input and output out of memory for a message each; of `memory` both if it is both."""
        whole, n, m = memory[: self.count], self.input.size, self.expected.size
        if self.operation.name == "broadcast":  # its output is the input's memory anyway
            return whole, whole
        if memory is not more:
            return memory[:n], more[:m]
        own = self.rank * self.block
        x = whole[own : own + n] if self.operation.takes == "own" else whole[:n]
        out = whole[own : own + m] if self.operation.gives == "own" else whole[:m]
        return x, (x if n == m == self.count else out)

    def reset(self, x: Array, out: Array) -> None:
        """Give ``x`` its input; ``out``, where that is other memory, something wrong everywhere."""
        bits = f"u{out.itemsize}"
        np.invert(self.expected.view(bits), out=out.view(bits))
        np.copyto(x[: self.input.size], self.input)

    def rest(self, x: Array) -> None:
        """Make ``x`` hold what stays itself however often it is reduced in place."""
        if self.op is ReduceOp.SUM:
            x.fill(0)
        elif self.op is ReduceOp.PROD:
            x.fill(1)

    def wrong(self, out: Array) -> int:
        """Return how many elements of ``out`` are not what they must be."""
        return int(np.count_nonzero(out != self.expected))

    def _result(self, parts: list[Array], own: slice) -> Array:
        name, rank, size = self.operation.name, self.rank, self.size
        cuts = [slice(r * self.block, (r + 1) * self.block) for r in range(size)]
        if self.operation.reduces:
            total = _fold(self.op, parts)
        elif name in ("allgather", "gather"):
            total = np.concatenate([part[cut] for part, cut in zip(parts, cuts, strict=True)])
        elif name == "alltoall":
            total = np.concatenate([part[own] for part in parts])
        elif name == "sendrecv":
            total = parts[rank - 1].copy()
        elif name == "pingpong":
            alone = rank == size - 1 and not rank % 2
            total = parts[rank - rank % 2][: 0 if alone else None].copy()
        else:  # broadcast, scatter
            total = parts[0].copy()
        if self.operation.gives == "own":
            return total[own].copy()
        return total[: 0 if self.operation.gives == "root" and rank else None]


def _fold(op: ReduceOp, parts: list[Array]) -> Array:
    total: Array = parts[0].copy()
    ufunc = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
    for part in parts[1:]:
        ufunc.get(op, np.add)(total, part, out=total)
    if op is ReduceOp.AVG:
        size, kind = len(parts), total.dtype
        if kind.kind == "f":
            wide = np.float32 if kind.itemsize == 2 else kind
            total = np.divide(total, np.asarray(size, wide), dtype=wide).astype(kind)
        else:  # C divides towards zero
            quotient = np.abs(total.astype(np.int64)) // size
            total = (np.sign(total.astype(np.int64)) * quotient).astype(kind)
    return total
