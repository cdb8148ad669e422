"""What a kernel takes: cupy's RawKernel, one compiled by Triton, a CUfunction, or numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll.errors import UsageError
from pycoll.overlap.occupancy import Footprint

if TYPE_CHECKING:
    from pycoll.overlap.gpu import Gpu

#: The threads of a block: a number, or up to three dimensions.
Block = int | Sequence[int]


def threads_of(block: Block) -> int:
    """Return how many threads a block has."""
    try:
        sizes = [operator.index(block)] if not isinstance(block, Sequence) else list(block)
        threads = math.prod(operator.index(size) for size in sizes)
    except TypeError:
        threads = 0
    if threads < 1 or isinstance(block, str):
        raise UsageError(f"overlap: block is {block!r}, want its threads, such as 256 or (16, 16)")
    return threads


def footprint(kernel: Any, block: Block, dynamic: int, gpu: Gpu | None) -> Footprint:
    """Return what a block of a kernel takes.

    Args:
        kernel: A Footprint; a cupy RawKernel (or a function of a RawModule); a compiled Triton
            kernel; or the integer handle of a CUfunction.
        block: The threads of its block.
        dynamic: Bytes of shared memory that its launch asks for.
        gpu: Where it runs; only a handle needs it.

    Raises:
        UsageError: It is none of these.
    """
    threads = threads_of(block)
    if isinstance(kernel, Footprint):
        return replace(kernel, threads=threads, dynamic=kernel.dynamic + dynamic)
    if hasattr(kernel, "num_regs") and hasattr(kernel, "shared_size_bytes"):  # cupy
        return Footprint(threads, int(kernel.num_regs), int(kernel.shared_size_bytes), dynamic)
    if hasattr(kernel, "n_regs") and hasattr(kernel, "metadata"):  # Triton: all of it is dynamic
        return Footprint(threads, int(kernel.n_regs), 0, int(kernel.metadata.shared) + dynamic)
    if isinstance(kernel, int) and gpu is not None:
        return gpu.function(kernel, threads, dynamic)
    raise UsageError(
        f"overlap: a {type(kernel).__name__} is no kernel that can be asked what it takes; want a "
        "cupy RawKernel, a compiled Triton kernel, the handle of a CUfunction on this machine's "
        "GPU, or an overlap.Footprint"
    )


def handle_of(kernel: Any) -> int | None:
    """Return the CUfunction of a kernel; None of what is numbers only."""
    if isinstance(kernel, int):
        return kernel
    inner = getattr(kernel, "kernel", None)  # cupy: the compiled function
    found = getattr(inner, "ptr", None) or getattr(kernel, "function", None)  # Triton
    return found if isinstance(found, int) else None
