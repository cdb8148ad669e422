"""What arrays ask of CUDA's driver. Only the runtime has it, and lends it."""

from __future__ import annotations

from collections.abc import Callable


def _none(address: int) -> int:
    return -1


#: Returns the number of the GPU that memory belongs to, less than 0 if to none.
gpu_of: Callable[[int], int] = _none
