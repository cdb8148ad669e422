"""PYCOLL_CHECK checks what torch calls that waits, past no native shortcut, profilers or not."""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path
from typing import Any

import both
import torch
import torch.distributed as dist

import pycoll

sys.path.append(str(Path(__file__).parents[2] / "flips"))
import flips


def wrong(call: Any) -> pycoll.CorruptionError:
    """Flip a bit of rank 1's result, which both ranks hear of."""
    with flips.in_result(dist.get_rank() == 1, 50, random.Random(1)):
        try:
            call()
        except dist.DistBackendError as error:
            found: Exception = error
        else:
            raise AssertionError("nothing was found")
    assert isinstance(found, pycoll.CorruptionError)
    assert isinstance(found.__cause__, pycoll.CorruptionError)
    return found.__cause__


def calls() -> None:
    x, whole = torch.ones(4, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    for _ in range(3):  # the first makes a plan, and others would be native calls
        dist.all_reduce(x)
        assert wrong(lambda: dist.all_reduce(x)).ranks == (1,)
        assert wrong(lambda: dist.reduce_scatter_tensor(x, whole)).ranks == (1,)
        assert wrong(lambda: dist.all_gather_into_tensor(whole, x)).hops[0][:2] == (0, 1)
        parts = list(whole.reshape(2, 4)) if dist.get_rank() == 1 else None
        found = wrong(lambda parts=parts: dist.gather(x, parts, dst=1))
        assert "got, not what rank" in str(found)


def main() -> None:
    group, _ = both.begin()
    calls()
    native = group._native
    with pycoll.register_profiler(lambda event: None):
        calls()
    assert group._pointers is not native, "a profiler that is closed must not end the checks"
    calls()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dist.all_reduce(torch.ones(4), async_op=True).wait()
    assert [str(one.message) for one in said] == [
        "PYCOLL_CHECK=1: calls with async_op=True are not checked for silent corruption"
    ]
    both.end()


main()
