"""What is timed: collectives, and what ranks send to one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Operation(NamedTuple):
    """What is timed: a collective, or ranks that send to one another.

    A message is all blocks together, as nccl-tests counts it. The time of a message that crosses
    the busiest wire once, at full speed, is nbytes / busbw: busbw is algbw times `crossings`. Of
    several pairs of ranks that send at once, busbw is the sum.
    """

    name: str
    crossings: Callable[[int], float]  #: as nccl-tests has them
    takes: str  #: what the input is: "all" blocks, the "own" one, or all at the "root" only
    gives: str  #: what the output is, alike
    reduces: bool = False
    in_place: bool = True  #: input and output may be one memory
    rooted: bool = False
    counted: bool = False  #: the blocks are of different lengths
    between_two: bool = False  #: messages between pairs of ranks, no collective
    windowed: bool = False  #: several messages are on their way at once
    sized: bool = True  #: there is a message at all

    @property
    def blocks(self) -> bool:
        """Whether a message is one block for each rank."""
        return "own" in (self.takes, self.gives) or self.name.startswith("alltoall")

    @property
    def collective(self) -> str:
        """Name of the collective whose algorithms run it; "" where none does."""
        name = {"allgatherv": "allgather", "reduce_scatterv": "reduce_scatter"}.get(self.name)
        plain = self.sized and not (self.between_two or self.counted)
        return name or (self.name if plain else "")


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
        Operation("barrier", _once, "all", "all", in_place=False, sized=False),
        Operation("allgatherv", _others, "own", "all", counted=True),
        Operation("reduce_scatterv", _others, "all", "own", reduces=True, counted=True),
        Operation("alltoallv", _others, "all", "all", in_place=False, counted=True),
        Operation("gatherv", _others, "own", "root", rooted=True, counted=True),
        Operation("scatterv", _others, "root", "own", rooted=True, counted=True),
        # Every rank sends to the next one round a ring.
        Operation("sendrecv", _once, "all", "all", in_place=False, between_two=True),
        # Rank 0 sends to rank 1, which sends it back; so do 2 and 3, and so on.
        Operation("pingpong", lambda n: 2.0, "all", "all", in_place=False, between_two=True),
        # Every rank of the first half sends a window of messages to one of the second, or both do.
        Operation(
            "bw", lambda n: n // 2, "all", "all", in_place=False, between_two=True, windowed=True
        ),
        Operation(
            "bibw",
            lambda n: n // 2 * 2,
            "all",
            "all",
            in_place=False,
            between_two=True,
            windowed=True,
        ),
    )
}
