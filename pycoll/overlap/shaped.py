"""A kernel that is launched with padding, so that an SM holds fewer of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycoll.arguments import instance, integer, row
from pycoll.errors import UsageError, quoted
from pycoll.overlap.kernel import Block, footprint, sizes_of, threads_of
from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import padding_for, resident

#: Percent of the L1 cache that a shaped kernel asks to be shared memory: the padding counts
#: against the largest carve-out, and an SM changes its carve-out only when nothing runs on it.
_CARVEOUT = 100


class Shaped:
    """Called like the cupy RawKernel that it was made of."""

    def __init__(self, kernel: Any, max_blocks_per_sm: int, sm: Limits) -> None:
        for name in ("num_regs", "shared_size_bytes", "max_dynamic_shared_size_bytes"):
            if not hasattr(kernel, name):
                raise UsageError(
                    f"overlap.shape: kernel is {quoted(kernel)}, which has no {name}: want a cupy "
                    "RawKernel (libraries such as cuBLAS choose their launches themselves)"
                )
        instance("overlap.shape: sm", sm, Limits)
        self.max_blocks_per_sm = integer("overlap.shape: max_blocks_per_sm", max_blocks_per_sm, 1)
        self.kernel = kernel
        self._sm = sm
        self._paddings: dict[tuple[int, int], int] = {}

    def padding(self, block: Block, shared_mem: int = 0) -> int:
        """Return the bytes that a launch is given besides the ``shared_mem`` that it asks for.

        Raises:
            UsageError: No padding holds the SM to so few blocks of this kernel.
        """
        key = threads_of(block), integer("overlap: shared_mem", shared_mem, 0)
        found = self._paddings.get(key)
        if found is None:
            found = self._paddings[key] = self._find(*key)
        return found

    def _find(self, threads: int, shared_mem: int) -> int:
        each = footprint(self.kernel, threads, shared_mem, None)
        natural = resident(each, self._sm)
        if natural == 0:
            raise UsageError(
                f"overlap.shape: the kernel cannot be launched with {each}; want a block that an "
                "SM has room for"
            )
        padding = padding_for(each, self.max_blocks_per_sm, self._sm)
        if padding is None:
            raise UsageError(
                f"overlap.shape: an SM holds {natural} blocks of {threads} threads, and no padding "
                f"makes that {self.max_blocks_per_sm}: a block may have "
                f"{self._sm.shared_per_block:,} B of shared memory"
            )
        return padding

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int = 0
    ) -> None:
        """Enqueue the kernel on cupy's current stream; the arguments are RawKernel's."""
        grid, block, args = _launch(grid, block, args)
        padding = self.padding(block, shared_mem)
        nbytes = shared_mem + padding
        if padding:
            # Before the launch: more than 48 KiB is refused unless it was asked for.
            if self.kernel.max_dynamic_shared_size_bytes < nbytes:
                self.kernel.max_dynamic_shared_size_bytes = nbytes
            if getattr(self.kernel, "preferred_shared_memory_carveout", _CARVEOUT) != _CARVEOUT:
                self.kernel.preferred_shared_memory_carveout = _CARVEOUT
        self.kernel(grid, block, args, shared_mem=nbytes)

    def __repr__(self) -> str:
        return f"<overlap.Shaped at most {self.max_blocks_per_sm} blocks per SM of {self.kernel!r}>"


class Launch:
    """A kernel with its grid and its arguments: what `measure` can shape by itself."""

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:
        if not callable(kernel):
            raise UsageError(f"overlap.Launch: kernel is {quoted(kernel)}, want a cupy RawKernel")
        self.kernel = kernel
        self.grid, self.block, self.args = _launch(grid, block, args)
        self.shared_mem = integer("overlap.Launch: shared_mem", shared_mem, 0)

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on cupy's current stream, which `measure` sets."""
        self.kernel(self.grid, self.block, self.args, shared_mem=self.shared_mem)

    def shaped(self, max_blocks_per_sm: int, sm: Limits) -> Launch:
        """Return the same of a capped kernel."""
        kernel = Shaped(self.kernel, max_blocks_per_sm, sm)
        return Launch(kernel, self.grid, self.block, self.args, self.shared_mem)


def _launch(
    grid: Sequence[int], block: Sequence[int], args: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Return what cupy takes; UsageError names what cannot be."""
    return sizes_of("grid", grid), sizes_of("block", block), row("overlap: args", args)
