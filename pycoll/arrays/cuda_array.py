"""CudaArray: memory of a GPU as an array, for programs that have no cupy.

It holds, cuts and shows memory, and computes nothing: `cupy.asarray(x)`, `torch.as_tensor(x)` and
`torch.from_dlpack(x)` make arrays of it that do, without a copy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pycoll.arrays import dlpack
from pycoll.dtypes import DType
from pycoll.errors import UsageError

if TYPE_CHECKING:
    import numpy


class CudaArray:
    """A contiguous array in the memory of a GPU.

    It has `__dlpack__`, and `__cuda_array_interface__` unless it is of bfloat16, for which that has
    no name. The memory lives as long as ``owner``, which
    every part of the array holds, too.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        kind: DType,
        number: int,
        owner: Any,
        stream: int | None = None,
        writable: bool = True,
    ) -> None:
        self.address = address
        self.shape = shape
        self.kind = kind  #: its dtype, as pycoll knows it
        self.size = math.prod(shape)
        self.nbytes = self.size * kind.itemsize
        self.number = number  #: of the GPU, as CUDA counts
        self._owner = owner
        self.stream = stream  #: that its memory is ordered by; None: by none
        self.writable = writable
        #: Bytes along its axes, of what only tells where it lies and may not be contiguous.
        self.strides: tuple[int, ...] | None = None

    @property
    def memory(self) -> Any:
        """Return what its memory lives as long as."""
        return self._owner

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """As numpy has it; numpy by itself has no bfloat16."""
        import numpy

        return numpy.dtype(self.kind.name)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.kind.format:
            raise AttributeError(f"the interface has no name for {self.kind.name}; take __dlpack__")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, not self.writable),
            "version": 3,
            "strides": None,
            "stream": self.stream,
        }

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule of DLPack; the array orders nothing, so no stream has to wait."""
        return dlpack.export(self.address, self.shape, self.kind, self.number, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.number

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __getitem__(self, rows: slice) -> CudaArray:
        """Return some neighbouring rows, as a view."""
        if not isinstance(rows, slice) or not self.shape:
            raise UsageError(
                f"CudaArray: index is {rows!r}, want a slice of its rows; for more make a cupy "
                "array (cupy.asarray) or a tensor (torch.as_tensor) of it"
            )
        first, end, step = rows.indices(self.shape[0])
        if step != 1:
            raise UsageError(f"CudaArray: the step of {rows!r} is {step}, want 1")
        count = max(0, end - first)
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        return self._part(self.address + first * row, (count, *self.shape[1:]))

    def reshape(self, *shape: Any) -> CudaArray:
        """Return the same elements under another shape, as a view; one length may be -1."""
        wanted = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if wanted.count(-1) == 1:
            others = -math.prod(wanted)
            wanted = tuple(self.size // max(1, others) if n == -1 else n for n in wanted)
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise UsageError(f"CudaArray: shape {shape!r} does not hold {self.size} elements")
        return self._part(self.address, wanted)

    def _part(self, address: int, shape: tuple[int, ...]) -> CudaArray:
        more = self.stream, self.writable
        return CudaArray(address, shape, self.kind, self.number, self._owner, *more)

    def __repr__(self) -> str:
        return f"<pycoll.CudaArray {self.kind.name}{list(self.shape)} on cuda:{self.number}>"
