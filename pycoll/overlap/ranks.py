"""The ranks of a communicator, as `measure` needs them."""

from __future__ import annotations

from typing import Any


class Together:
    """All ranks start together, and the slowest one's time counts."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._comm.barrier()

    def slowest(self, seconds: list[float]) -> list[float]:
        """Return the largest of all ranks, place by place."""
        every = self._comm.allgather_object(seconds)
        return [max(times) for times in zip(*every, strict=True)]
