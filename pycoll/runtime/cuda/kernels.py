"""Kernels: the interpreter as a module on one GPU, for each dtype and operator that is called."""

from __future__ import annotations

from pathlib import Path

from pycoll import log
from pycoll.dtypes import DType, ReduceOp
from pycoll.runtime.cuda import compile, pace
from pycoll.runtime.native import cuda
from pycoll.runtime.native.cuda import Function

#: Threads of a block: few registers and little shared memory fit beside computation.
THREADS = 256


class Kernels:
    """The kernels that are loaded.

    Raises:
        UnavailableError: None can be compiled for this GPU; said at once, while all ranks listen.
    """

    def __init__(self, number: int, cache: Path) -> None:
        device = cuda.device(number)
        self._number, self._cache = number, cache
        self._capability = device.major, device.minor
        compile.require(self._capability, cache)
        self.paced = ""  #: what results are to say, if any kernel is paced
        self._modules: list[int] = []
        self._functions: dict[tuple[DType, ReduceOp], int] = {}
        self.threads = min(THREADS, device.threads_per_block)
        # Now: no plan comes before a message, and by then a kernel may wait for this rank.
        image = compile.transfer_cubin(self._capability, cache)
        self.multimem = compile.multimem(image)  #: whether kernels reach multicast addresses
        self.transfer = self._load(image, compile.TRANSFER)  #: CUDA's handle of that kernel

    def function(self, dtype: DType, op: ReduceOp) -> int:
        """Return CUDA's handle of a kernel; it is compiled and loaded if need be."""
        found = self._functions.get((dtype, op))
        if found is None:
            self.paced = self.paced or pace.label()
            image = compile.cubin(dtype, op, self._capability, self._cache)
            if self.multimem and not compile.multimem(image):  # from a cache, by an older NVRTC
                name = compile.entry(dtype, op)
                log.info("cuda", "%s goes without multicast: NVRTC before 12.2 compiled it", name)
            found = self._load(image, compile.entry(dtype, op))
            self._functions[dtype, op] = found
        return found

    def _load(self, image: bytes, name: str) -> int:
        module = cuda.module(self._number, image)
        self._modules.append(module)
        return cuda.function(self._number, module, name)

    def any(self) -> Function | None:
        """Return what one of them takes, if any is loaded."""
        for handle in self._functions.values():
            return cuda.function_read(self._number, handle)
        return None

    def close(self) -> None:
        """Unload all of them; none runs."""
        for module in self._modules:
            cuda.module_free(self._number, module)
        self._modules, self._functions = [], {}
