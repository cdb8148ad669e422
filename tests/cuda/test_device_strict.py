"""pycoll's host side never touches a GPU's memory: on the stand-in it would die of it."""

from __future__ import annotations

from ctypes import c_size_t, c_uint64

import fakecuda
import gpus
import numpy as np

import pycoll

pytestmark = gpus.MARKS


def _calls() -> list[bool]:
    comm = pycoll.init()
    size, rank = comm.size, comm.rank
    good = []
    for count in (1, 1000, 70_000):  # packets, and more than a slot
        x = fakecuda.Array.of(np.arange(count, dtype=np.float32) + rank)
        out = fakecuda.Array(count, np.float32)
        comm.allreduce(x, out)
        fakecuda.cu("cuCtxSynchronize")
        want = np.arange(count, dtype=np.float32) * size + sum(range(size))
        good.append(bool((out.get() == want).all()))
        received = [fakecuda.Array(count, np.float32) for _ in range(size)]
        comm.exchange(
            [(x, peer) for peer in range(size)], [(y, peer) for peer, y in enumerate(received)]
        )
        fakecuda.cu("cuCtxSynchronize")
        came = [y.get() == np.arange(count) + peer for peer, y in enumerate(received)]
        good.append(bool(np.all(came)))
        comm.broadcast(x, root=1)
        fakecuda.cu("cuCtxSynchronize")
        good.append(bool((x.get() == np.arange(count) + 1).all()))
    own = comm.empty(5000, np.float32, device="cuda")
    at = own.__cuda_array_interface__["data"][0]
    x = fakecuda.Array.of(np.full(5000, rank + 1, np.float32))
    copy = "cuMemcpyAsync"
    fakecuda.cu(copy, c_uint64(at), c_uint64(x.ptr), c_size_t(x.nbytes), None)
    comm.allreduce(own)
    fakecuda.cu(copy, c_uint64(x.ptr), c_uint64(at), c_size_t(x.nbytes), None)
    good.append(bool((x.get() == size * (size + 1) / 2).all()))
    comm.close()
    return good


def test_ranks_whose_host_cannot_touch_a_gpu() -> None:
    assert gpus.ranks(3, _calls, strict=1) == [[True] * 10] * 3
