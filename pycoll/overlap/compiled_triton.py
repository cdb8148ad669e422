"""Kernels that Triton has compiled, with the looks of cupy's: how they are launched with padding.

A ``CompiledKernel`` of Triton 3 hands its launcher ``packed_metadata``, of which the third number
is the dynamic shared memory of the launch (triton/backends/nvidia/compiler.py, pack_metadata; so in
3.0 to 3.9). A padded launch is the kernel's own with a larger one there: its launcher, its hooks
and its arguments are as they were. The kernel is not copied, as the end of a copy would unload it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pycoll.errors import UnavailableError, UsageError, quoted
from pycoll.overlap.kernel import Block, compiled_threads, threads_of

#: Where the launch's dynamic shared memory is.
_SHARED = 2


class AsRaw:
    """What cupy's RawKernel has, of a compiled Triton kernel.

    Its own dynamic shared memory counts as if it were declared, so ``shared_mem`` is what a launch
    is given besides.
    """

    #: Triton leaves it to the driver.
    preferred_shared_memory_carveout = -1

    def __init__(self, kernel: Any) -> None:
        if int(getattr(kernel.metadata, "num_ctas", 1)) != 1:
            raise UsageError(
                f"overlap: the Triton kernel's blocks come in clusters of "
                f"{kernel.metadata.num_ctas} (num_ctas), want 1"
            )
        self.kernel = kernel
        self._run = kernel.run  # which loads it
        self.num_regs = int(kernel.n_regs)
        self.shared_size_bytes = int(kernel.metadata.shared)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "preferred_shared_memory_carveout":
            _driver().function_carveout(self._device(), self.kernel.function, value)

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """How much a launch may be given."""
        found = _driver().function_read(self._device(), self.kernel.function)
        return int(found.dynamic) - self.shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, nbytes: int) -> None:
        nbytes += self.shared_size_bytes
        _driver().function_dynamic(self._device(), self.kernel.function, nbytes)

    @staticmethod
    def _device() -> int:
        active = _triton_driver()
        return int(active.get_current_device())

    def __call__(
        self, grid: Sequence[int], block: Block, args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        """Enqueue it on the current stream, which is torch's."""
        threads = compiled_threads(self.kernel)
        if threads_of(block) != threads:
            raise UsageError(
                f"overlap: block is {quoted(block)}, and the Triton kernel was compiled for "
                f"{threads} threads; want those"
            )
        packed = list(self.kernel.packed_metadata)
        if len(packed) <= _SHARED or packed[_SHARED] != self.shared_size_bytes:
            raise UnavailableError(
                f"overlap: this Triton launches a kernel with {quoted(tuple(packed))}, want its "
                f"shared memory, {self.shared_size_bytes} B, in the third place as in Triton 3"
            )
        packed[_SHARED] += shared_mem
        stream = int(_triton_driver().get_current_stream(self._device()))
        sizes = (*grid, 1, 1)[:3]
        about = self.kernel.launch_metadata(sizes, stream, *args)
        where = stream, self.kernel.function, tuple(packed)
        self._run(*sizes, *where, about, *_hooks(self.kernel), *args)

    def __repr__(self) -> str:
        return repr(self.kernel)


def _driver() -> Any:
    # Loaded here: it brings the engine, and what reckons with numbers only does without.
    from pycoll.runtime.native import cuda

    return cuda


def _triton_driver() -> Any:
    """Return what Triton asks for devices and streams; a kernel of it is there, so it is loaded."""
    return sys.modules["triton"].runtime.driver.active


def _hooks(kernel: Any) -> tuple[Any, Any]:
    """Return what the user has called around launches: before 3.4 the kernel's class has it."""
    knobs = getattr(sys.modules["triton"], "knobs", None)
    where = type(kernel) if knobs is None else knobs.runtime
    return getattr(where, "launch_enter_hook", None), getattr(where, "launch_exit_hook", None)
