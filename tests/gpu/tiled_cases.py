"""Computations by tiles: what ranks as threads and as processes run over the stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fakecuda
import numpy as np

sys.path.append(str(Path(__file__).parent))

from pycoll.runtime.native import cuda
from pycoll.runtime.native.load import ffi

ROUNDS = 3


class Halving:
    """A kernel of the stand-in on rows of a float32 array: x = x / 2 + 1, three times."""

    def __init__(self) -> None:
        module = cuda.module(0, fakecuda.image(halve={"like": "fakecuda_busy", "threads": 4}))
        self._handle = cuda.function(0, module, "halve")

    def enqueue(self, rows: Any, stream: int) -> None:
        given = [
            ffi.new("uint64_t *", rows.address),
            ffi.new("uint64_t *", rows.size),
            ffi.new("uint32_t *", ROUNDS),
        ]
        cuda.launch(0, self._handle, (1, 1, 1), (4, 1, 1), given, stream)

    @staticmethod
    def expected(x: Any) -> Any:
        for _ in range(ROUNDS):
            x = x / np.float32(2) + np.float32(1)
        return x


def drawn(*seed: int, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
