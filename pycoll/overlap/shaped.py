"""A kernel that is launched with padding, so that an SM holds fewer of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pycoll.arguments import instance, integer, row
from pycoll.errors import UsageError, quoted
from pycoll.overlap.compiled_triton import AsRaw
from pycoll.overlap.kernel import (
    Block,
    compiled_threads,
    footprint,
    is_compiled,
    sizes_of,
    threads_of,
)
from pycoll.overlap.limits import Limits
from pycoll.overlap.occupancy import padding_for, resident

#: Percent of the L1 cache that a shaped kernel asks to be shared memory: the padding counts
#: against the largest carve-out, and an SM changes its carve-out only when nothing runs on it.
_CARVEOUT = 100


def _raw(kernel: Any) -> Any:
    """Return a kernel with the looks of cupy's RawKernel: itself, but for those of Triton."""
    return AsRaw(kernel) if is_compiled(kernel) else kernel


class Shaped:
    """Called like a cupy RawKernel, which it was made of, or of a compiled Triton kernel.

    Of a Triton kernel ``shaped[grid](*args)`` launches it too. The arguments are all that it has,
    constants included, as a compiled kernel takes them; it runs on torch's current stream.
    """

    def __init__(self, kernel: Any, max_blocks_per_sm: int, sm: Limits) -> None:
        self._raw = _raw(kernel)
        for name in ("num_regs", "shared_size_bytes", "max_dynamic_shared_size_bytes"):
            if not hasattr(type(self._raw), name) and not hasattr(self._raw, name):
                raise UsageError(
                    f"overlap.shape: kernel is {quoted(kernel)}, which has no {name}: want a cupy "
                    "RawKernel, or a compiled Triton kernel (libraries such as cuBLAS choose their "
                    "launches themselves)"
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
        each = footprint(self._raw, threads, shared_mem, None)
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

    def __call__(self, grid: Block, block: Block, args: Sequence[Any], shared_mem: int = 0) -> None:
        """Enqueue the kernel on cupy's or torch's current stream; arguments are RawKernel's."""
        grid, block, args = _launch(grid, block, args)
        padding = self.padding(block, shared_mem)
        nbytes = shared_mem + padding
        if padding:
            # Before the launch: more than 48 KiB is refused unless it was asked for.
            if self._raw.max_dynamic_shared_size_bytes < nbytes:
                self._raw.max_dynamic_shared_size_bytes = nbytes
            if getattr(self._raw, "preferred_shared_memory_carveout", _CARVEOUT) != _CARVEOUT:
                self._raw.preferred_shared_memory_carveout = _CARVEOUT
        self._raw(grid, block, args, shared_mem=nbytes)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """Return what enqueues a Triton kernel in that grid, called with its arguments."""
        if not is_compiled(self.kernel):
            raise UsageError(
                f"overlap: kernel is {quoted(self.kernel)}, want a compiled Triton kernel for "
                "shaped[grid](...); this one is called as shaped(grid, block, args)"
            )

        def launch(*args: Any) -> None:
            self(grid, compiled_threads(self.kernel), args)

        return launch

    def __repr__(self) -> str:
        return f"<overlap.Shaped at most {self.max_blocks_per_sm} blocks per SM of {self.kernel!r}>"


class Launch:
    """A kernel with its grid and its arguments: what `measure` can shape by itself."""

    def __init__(
        self,
        kernel: Any,
        grid: Block,
        block: Block,
        args: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:
        self._raw = _raw(kernel)
        if not callable(self._raw):
            raise UsageError(
                f"overlap.Launch: kernel is {quoted(kernel)}, want a cupy RawKernel, or a compiled "
                "Triton kernel"
            )
        self.kernel = kernel
        self.grid, self.block, self.args = _launch(grid, block, args)
        self.shared_mem = integer("overlap.Launch: shared_mem", shared_mem, 0)

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it on cupy's or torch's current stream, which `measure` sets."""
        self._raw(self.grid, self.block, self.args, shared_mem=self.shared_mem)

    def shaped(self, max_blocks_per_sm: int, sm: Limits) -> Launch:
        """Return the same of a capped kernel."""
        kernel = Shaped(self.kernel, max_blocks_per_sm, sm)
        return Launch(kernel, self.grid, self.block, self.args, self.shared_mem)


def _launch(
    grid: Block, block: Block, args: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Return what cupy takes; UsageError names what cannot be."""
    return sizes_of("grid", grid), sizes_of("block", block), row("overlap: args", args)
