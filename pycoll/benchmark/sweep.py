"""Sweep: what a benchmark goes through, from the smallest message to the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pycoll.algorithms import Algorithm
from pycoll.benchmark.operation import Operation


@dataclass(frozen=True)
class Sweep:
    """What is timed, and in which forms."""

    operation: Operation
    min: int = 8  #: bytes of the smallest message
    max: int = 256 << 20
    factor: int = 4  #: between sizes
    step: int | None = None  #: the same, added
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    root: int = 0
    in_place: bool = False
    arrays: str = "numpy"  #: or "empty" (of ``comm.empty``), or "both"
    call: str = "call"  #: or "plan", or "both"
    overlap: bool = False  #: non-blocking calls, with computation beside them
    window: int = 1  #: messages of one call
    algorithms: tuple[str | Algorithm | None, ...] = (None,)  #: None: pycoll chooses
    iters: int | None = None
    warmup: int | None = None
    repeats: int = 7

    @property
    def every(self) -> bool:
        """Whether all dtypes or all operators are meant; what is not served is then left out."""
        return len(self.dtypes) > 1 or len(self.ops) > 1

    def sizes(self, itemsize: int, ranks: int) -> Iterator[int]:
        """Yield the bytes of the messages: whole elements, in each block where it is cut so."""
        unit = itemsize * (ranks if self.operation.blocks else 1)
        size, last = self.min, -1
        while size <= self.max:
            whole = max(unit, size - size % unit) * self.operation.sized
            if whole != last:
                yield whole
            size, last = size + self.step if self.step else size * self.factor, whole
