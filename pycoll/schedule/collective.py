"""Collective: what holds before and what must hold after, over (rank, block).

A message is a row of blocks: one, or one for each rank. Each is cut into equal parts, and the
parts are the chunks. A value is told by the set of ranks whose contributions to its block it
folds, each exactly once. A rule returns that set, or None where a rank's input (before) or
output (after) has no such block. The blocks that it has, its *extent*, lie side by side.

The root of a rooted collective is rank 0 here: a call with another root runs the Programs of
renumbered ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

from pycoll.errors import ScheduleError, UsageError

#: (rank, block, size) -> the ranks whose contributions are there
Rule = Callable[[int, int, int], "frozenset[int] | None"]
#: (rank, block, size) -> the block of the contributors' input that is promised there
Origin = Callable[[int, int, int], int]


def _same_block(rank: int, block: int, size: int) -> int:
    return block


@dataclass(frozen=True)
class Collective:
    """A promise to the caller; equality is identity of the rules."""

    name: str
    before: Rule  #: of the input
    after: Rule  #: of the output
    blocks: Literal["one", "rank"] = "one"  #: the whole message, or one block for each rank
    origin: Origin = _same_block
    reduces: bool = False  #: values may be folded with the caller's operation
    rooted: bool = False  #: the caller names a root
    #: every rank ends with the same bits, so with equal expression trees
    same_bits: bool = False
    in_place: bool = True  #: input and output may be one memory
    #: all blocks are equally long, so a chunk may lie in the place of any other
    equal_blocks: bool = False

    def __repr__(self) -> str:
        return f"<pycoll.{self.name}, a collective>"

    def __call__(self, *arguments: object, **more: object) -> NoReturn:
        """Raise: it is a promise, by which algorithms are marked; calls are a Communicator's."""
        raise UsageError(
            f"pycoll.{self.name} is what an algorithm is for, as in @pycoll.algorithm(pycoll."
            f"{self.name}); to call it: comm = pycoll.init(), then comm.{self.name}(x)"
        )

    def nblocks(self, size: int) -> int:
        """Return how many blocks a message of ``size`` ranks has."""
        return 1 if self.blocks == "one" else size

    def check_chunks(self, nchunks: int, size: int) -> None:
        """Raise ScheduleError unless ``nchunks`` chunks cut every block into equal parts."""
        if self.equal_blocks and nchunks != size:
            raise ScheduleError(f"{nchunks} chunks, want {size}: {self.name} cuts no block")
        if nchunks % self.nblocks(size):
            raise ScheduleError(
                f"{nchunks} chunks, want a multiple of {size}: {self.name} has a block for each "
                "rank, each cut into equal parts"
            )

    def in_blocks(self, rank: int, size: int) -> range:
        """Return the blocks that the input of ``rank`` has."""
        return _extent(self.before, rank, size, self.nblocks(size))

    def out_blocks(self, rank: int, size: int) -> range:
        """Return the blocks that the output of ``rank`` has."""
        return _extent(self.after, rank, size, self.nblocks(size))

    def in_extent(self, rank: int, size: int, nchunks: int) -> range:
        """Return the chunks that the input of ``rank`` has, of ``nchunks``."""
        return self._chunks(self.in_blocks(rank, size), size, nchunks)

    def out_extent(self, rank: int, size: int, nchunks: int) -> range:
        """Return the chunks that the output of ``rank`` has, of ``nchunks``."""
        return self._chunks(self.out_blocks(rank, size), size, nchunks)

    def _chunks(self, blocks: range, size: int, nchunks: int) -> range:
        parts = nchunks // self.nblocks(size)
        return range(blocks.start * parts, blocks.stop * parts)


@lru_cache(maxsize=4096)
def _extent(rule: Rule, rank: int, size: int, nblocks: int) -> range:
    there = [b for b in range(nblocks) if rule(rank, b, size) is not None]
    extent = range(there[0], there[-1] + 1) if there else range(0)
    if len(extent) != len(there):
        raise ScheduleError(f"rank {rank} has blocks {there}, want blocks side by side")
    return extent


@lru_cache(maxsize=8)  # one set for all ranks and blocks: making it takes as long as it is large
def _all(size: int) -> frozenset[int]:
    return frozenset(range(size))


def _own(rank: int, block: int, size: int) -> frozenset[int]:
    return frozenset((rank,))


def _everyone(rank: int, block: int, size: int) -> frozenset[int]:
    return _all(size)


def _everyone_at_root(rank: int, block: int, size: int) -> frozenset[int] | None:
    return None if rank else _all(size)


def _everyone_at_owner(rank: int, block: int, size: int) -> frozenset[int] | None:
    return _all(size) if block == rank else None


def _root(rank: int, block: int, size: int) -> frozenset[int]:
    return frozenset((0,))


def _root_at_root(rank: int, block: int, size: int) -> frozenset[int] | None:
    return None if rank else frozenset((0,))


def _root_at_owner(rank: int, block: int, size: int) -> frozenset[int] | None:
    return frozenset((0,)) if block == rank else None


def _owner(rank: int, block: int, size: int) -> frozenset[int]:
    return frozenset((block,))


def _owner_at_owner(rank: int, block: int, size: int) -> frozenset[int] | None:
    return frozenset((rank,)) if block == rank else None


def _owner_at_root(rank: int, block: int, size: int) -> frozenset[int] | None:
    return None if rank else frozenset((block,))


def _own_block(rank: int, block: int, size: int) -> int:
    return rank


allreduce = Collective("allreduce", _own, _everyone, reduces=True, same_bits=True)
broadcast = Collective("broadcast", _root_at_root, _root, rooted=True)
reduce = Collective("reduce", _own, _everyone_at_root, reduces=True, rooted=True)
allgather = Collective("allgather", _owner_at_owner, _owner, "rank")
reduce_scatter = Collective("reduce_scatter", _own, _everyone_at_owner, "rank", reduces=True)
alltoall = Collective(
    "alltoall", _own, _owner, "rank", _own_block, in_place=False, equal_blocks=True
)
gather = Collective("gather", _owner_at_owner, _owner_at_root, "rank", rooted=True)
scatter = Collective("scatter", _root_at_root, _root_at_owner, "rank", rooted=True)

#: What a user calls one.
CollectiveName = Literal[
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
]

COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        allreduce,
        broadcast,
        reduce,
        allgather,
        reduce_scatter,
        alltoall,
        gather,
        scatter,
    )
}
