"""Calls of copy engines, checked bit for bit: what ranks as threads and as processes run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pycoll import overlap
from pycoll.errors import ClosedError
from pycoll.runtime.native import cuda


def given(rank: int, number: int, count: int, dtype: str) -> np.ndarray:
    drawn = np.random.default_rng((rank, number, count)).integers(0, 100, count)
    return drawn.astype(dtype)


def several(comm: Any, pool: Any, stream: int) -> None:
    """Calls of both kinds in a row, into two arrays in turn, each checked bit for bit."""
    size, rank = comm.size, comm.rank
    with overlap.copy_engine(comm, 1 << 20) as copies:
        for dtype in ("float32", "int8", "float64"):
            for count in (0, 1, 7, 1000):
                outs = [copies.empty(size * count, dtype) for _ in range(2)]
                for number in range(4):
                    out = outs[number % 2]
                    x = pool.array(given(rank, number, size * count, dtype))
                    if number % 2:
                        assert copies.alltoall(x, out, stream=stream) is out
                        parts = [
                            given(peer, number, size * count, dtype).reshape(size, count)[rank]
                            for peer in range(size)
                        ]
                    else:
                        copies.allgather(x[:count], out, stream=stream)
                        parts = [given(p, number, size * count, dtype)[:count] for p in range(size)]
                    cuda.stream_wait(0, stream)
                    found = np.empty(size * count, dtype)
                    pool.get(out.address, found)
                    assert (found == np.concatenate(parts)).all(), (dtype, count, number)
                    comm.barrier()  # the next one writes to the other array, the one after here
        copies.synchronize()
    with pytest.raises(ClosedError, match="CopyEngine: it is closed"):
        copies.check()
