"""What a kernel takes: cupy's RawKernel, one compiled by Triton, a CUfunction, or numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pycoll.arguments import integer
from pycoll.errors import UsageError, quoted
from pycoll.overlap.limits import WARP
from pycoll.overlap.occupancy import Footprint

if TYPE_CHECKING:
    from pycoll.overlap.gpu import Gpu

#: The threads of a block: a number, or up to three dimensions.
Block = int | Sequence[int]


#: What a block and a grid are made of, and the most of them that CUDA launches.
_MOST = {"block": ("threads", 1024), "grid": ("blocks", (2**31 - 1) * 65535**2)}


def sizes_of(what: str, given: Block) -> tuple[int, ...]:
    """Return the dimensions of a grid or a block, at most three; UsageError names ``what``."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    try:
        sizes = tuple(operator.index(size) for size in (given if several else (given,)))  # type: ignore[arg-type,union-attr]
    except TypeError:
        sizes = (0,)
    of, most = _MOST[what]
    if len(sizes) > 3 or min(sizes, default=1) < 1 or math.prod(sizes) > most:
        raise UsageError(
            f"overlap: {what} is {quoted(given)}, want its {of}, such as 256 or (16, 16), at most "
            f"{most}"
        )
    return sizes


def threads_of(block: Block) -> int:
    """Return how many threads a block has."""
    return math.prod(sizes_of("block", block))


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
    threads, dynamic = threads_of(block), integer("overlap: shared_mem", dynamic, 0)
    if isinstance(kernel, Footprint):
        return replace(kernel, threads=threads, dynamic=kernel.dynamic + dynamic)
    if hasattr(kernel, "num_regs") and hasattr(kernel, "shared_size_bytes"):  # cupy
        return Footprint(threads, int(kernel.num_regs), int(kernel.shared_size_bytes), dynamic)
    if is_compiled(kernel):
        getattr(kernel, "run", None)  # since 3.5 it is loaded by that, and then has n_regs
    if hasattr(kernel, "n_regs") and hasattr(kernel, "metadata"):  # Triton: all of it is dynamic
        return Footprint(threads, int(kernel.n_regs), 0, int(kernel.metadata.shared) + dynamic)
    if isinstance(kernel, int) and gpu is not None:
        return gpu.function(kernel, threads, dynamic)
    raise UsageError(
        f"overlap: kernel is {quoted(kernel)}, no kernel that can be asked what it takes; want a "
        "cupy RawKernel, a compiled Triton kernel, the handle of a CUfunction on this machine's "
        "GPU, or an overlap.Footprint"
    )


def is_compiled(kernel: object) -> bool:
    """Tell whether a kernel is one that Triton has compiled."""
    return hasattr(kernel, "metadata") and hasattr(kernel, "packed_metadata")


def compiled_threads(kernel: Any) -> int:
    """Return the threads of a block of a kernel that Triton has compiled."""
    return int(kernel.metadata.num_warps) * WARP


def own_threads(kernel: Any) -> int:
    """Return the threads of a block of a kernel that knows them; UsageError of others."""
    if isinstance(kernel, Footprint):
        return kernel.threads
    if is_compiled(kernel):
        return compiled_threads(kernel)
    raise UsageError(
        f"overlap.footprint: block is None, and kernel is {quoted(kernel)}; want the threads of "
        "its block, which only a compiled Triton kernel and an overlap.Footprint know"
    )


def handle_of(kernel: Any) -> int | None:
    """Return the CUfunction of a kernel; None of what is numbers only."""
    if isinstance(kernel, int):
        return kernel
    inner = getattr(kernel, "kernel", None)  # cupy: the compiled function
    found = getattr(inner, "ptr", None) or getattr(kernel, "function", None)  # Triton
    return found if isinstance(found, int) else None
