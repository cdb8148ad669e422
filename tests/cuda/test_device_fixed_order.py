"""The fixed order on arrays in the memory of GPUs, over the stand-in: the bits of the CPU."""

from __future__ import annotations

import functools
from typing import Any

import fakecuda
import gpus
import numpy as np
import pytest

import pycoll
from pycoll.communicator import Communicator

pytestmark = gpus.MARKS

COUNT = 5000


def messages(size: int, dtype: str) -> list[Any]:
    random = np.random.default_rng(7)
    return [(random.normal(size=COUNT) * 7.0**rank).astype(dtype) for rank in range(size)]


def bits(comm: Communicator, dtype: str, heap: bool, **how: Any) -> bytes:
    """Return the bits of an all-reduce of arrays of GPUs."""
    stream, given = fakecuda.Stream(), messages(comm.size, dtype)[comm.rank]
    x = comm.empty(COUNT, dtype, device="cuda") if heap else gpus.of(given)
    gpus.host(x)[...] = given
    with comm.on_stream(stream):
        comm.allreduce(x, **how)
    stream.synchronize()
    return bytes(gpus.host(x).tobytes())


def wanted(size: int, dtype: str) -> bytes:
    return bytes(functools.reduce(np.add, messages(size, dtype)).tobytes())


def test_the_bits_are_those_of_a_loop_over_the_ranks() -> None:
    def rank() -> None:
        with pycoll.init() as comm:
            comm.cuda()
            for dtype in ("float32", "float64", "float16"):
                want = wanted(comm.size, dtype)
                for heap in (False, True):
                    for algorithm in (None, "one_shot", "two_shot", "ordered_chain"):
                        for _ in range(2):  # the plan's making, and the fast path
                            how: dict[str, Any] = {"algorithm": algorithm, "order": "fixed"}
                            assert bits(comm, dtype, heap, **how) == want, (dtype, algorithm)
                    assert bits(comm, dtype, False, algorithm="ring") != want
                with pytest.raises(pycoll.UsageError, match="'ring' does not fold in the fixed"):
                    bits(comm, dtype, False, algorithm="ring", order="fixed")
            assert comm.explain("allreduce", 8, "cuda", order="fixed").free is not None

    gpus.ranks(3, rank)


def test_a_switch_that_rounds_in_its_own_order_has_no_part_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYCOLL_CUDA_MULTICAST", "on")

    def rank() -> tuple[int, int]:
        with pycoll.init() as comm:
            fakecuda.use(comm.rank)
            assert comm.cuda(comm.rank).multicast == "on"
            for algorithm in ("two_shot", None):
                before = fakecuda.switched()[0]
                got = bits(comm, "float32", True, algorithm=algorithm, order="fixed")
                assert got == wanted(comm.size, "float32")
                fixed, before = fakecuda.switched()[0] - before, fakecuda.switched()[0]
                bits(comm, "float32", True, algorithm="two_shot")
                assert fixed == 0
            return fixed, fakecuda.switched()[0] - before

    assert any(free > 0 for _, free in gpus.ranks(3, rank, devices=3, multicast=1))
