"""A kernel with the attributes of cupy's RawKernel, which records its launches."""

from __future__ import annotations

from typing import Any


class RawKernel:
    def __init__(self, registers: int, shared: int = 0) -> None:
        self.num_regs, self.shared_size_bytes = registers, shared
        self.max_dynamic_shared_size_bytes = (48 << 10) - shared
        self.preferred_shared_memory_carveout = -1
        self.launches: list[tuple[Any, ...]] = []

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "the driver refuses this"
        self.launches.append((grid, block, args, shared_mem))
