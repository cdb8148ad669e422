"""What a call wants of its arrays: apart or in place, in one memory, wherever they are passed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycoll.arrays import families, operands
from pycoll.arrays.cuda_array import CudaArray
from pycoll.arrays.view import ArrayView
from pycoll.dtypes import FLOAT64, ReduceOp
from pycoll.errors import UsageError
from pycoll.runtime.p2p import batch
from pycoll.runtime.p2p.batch import RankOf
from pycoll.runtime.plan import buckets
from pycoll.runtime.plan.request import KINDS, RequestBuilder

pytestmark = pytest.mark.native  # transfers are named as native code has them


def result(x: Any, out: Any) -> ArrayView:
    return operands.result(families.look(x, "allreduce: x"), out, "allreduce")


def test_where_a_result_may_go() -> None:
    x = np.ones(4)
    assert result(x, None).owner is x
    assert result(x, x).owner is x
    assert result(x, other := x[:]).owner is other
    assert result(x, other := np.ones(4)).owner is other
    pair = np.ones(8)
    assert result(pair[:4], pair[4:]).address == pair.ctypes.data + 32


def test_where_a_result_may_not_go() -> None:
    x, fixed = np.ones(4), np.ones(4)
    fixed.flags.writeable = False
    for source, out, message in (
        (fixed, None, "allreduce: x is read-only; pass an array to write the result to as out="),
        (b"ab", None, "x is read-only"),
        (x, fixed, "allreduce: out is read-only; pass an array that can be written"),
        (x, np.ones(4, "f4"), "out has dtype float32, want float64 as x has"),
        (x, np.ones((4, 1)), r"out has shape \(4, 1\), want \(4,\) as x has"),
        (x[:3], x[1:], r"out begins 8 bytes from x and overlaps it; pass the same array"),
        (x[1:], x[:3], "out begins -8 bytes from x"),
        (x, np.ones((4, 4))[0, ::1][::-1], "out is not contiguous"),
    ):
        with pytest.raises(UsageError, match=message):
            result(source, out)


PLACE = RankOf(0, 2)


def collective(name: str, x: Any, out: Any, counts: Any = None) -> None:
    RequestBuilder(KINDS[name], 0, 2, 0, counts).request(x, out, ReduceOp.SUM)


#: Who calls → the call on an input and a result, each of that many of the elements.
ENTRIES: dict[str, tuple[Callable[[Any, Any], object], int, int]] = {
    **{
        name: (lambda x, out, name=name: collective(name, x, out), *lengths)  # type: ignore[misc]
        for name, lengths in {
            "allreduce": (4, 4),
            "reduce": (4, 4),
            "allgather": (2, 4),
            "gather": (2, 4),
            "scatter": (4, 2),
            "reduce_scatter": (4, 2),
            "alltoall": (4, 4),
        }.items()
    },
    "allgatherv": (lambda x, out: collective("allgather", x, out, [3, 1]), 3, 4),
    "reduce_scatterv": (lambda x, out: collective("reduce_scatter", x, out, [3, 1]), 4, 3),
    "allreduce, array 0": (lambda x, out: buckets.pairs([x], [out], "allreduce"), 4, 4),
    "allreduce: array 0": (
        lambda x, out: buckets.pairs([x, np.ones(4)], [np.ones(4), out], "allreduce"),
        4,
        4,
    ),
    "exchange: recvs[0]": (lambda x, out: batch.exchange(PLACE, [(x, 1)], [(out, 1)]), 4, 4),
    "alltoallv": (lambda x, out: batch.alltoallv(PLACE, x, [3, 1], out, [2, 2]), 4, 4),
    "gatherv": (lambda x, out: batch.gatherv(PLACE, x, [3, 1], out, 0, "gatherv"), 3, 4),
    "scatterv": (lambda x, out: batch.scatterv(PLACE, x, [3, 1], out, 0, "scatterv"), 4, 3),
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("shift", [1, -1])
def test_arrays_that_overlap_are_refused_alike(name: str, shift: int) -> None:
    call, xs, outs = ENTRIES[name]
    whole = np.ones(8)
    x, out = whole[2 : 2 + xs], whole[2 + shift : 2 + shift + outs]
    how = f"out begins {8 * shift} bytes from x and overlaps it|shares memory with another array"
    # Whose result comes first in memory is named.
    who = re.escape(name).replace("0", "[01]")
    who = who.replace("recvs", "(recvs|sends)")
    with pytest.raises(UsageError, match=rf"^{who}:? ({how})\b.*; pass \w+"):
        call(x, out)


@pytest.mark.parametrize("name", ENTRIES)
def test_arrays_that_are_neighbours_are_served(name: str) -> None:
    call, xs, outs = ENTRIES[name]
    whole = np.ones(8)
    call(whole[:xs], whole[xs : xs + outs])
    call(whole[outs : outs + xs], whole[:outs])


@pytest.mark.parametrize("name", ENTRIES)
def test_a_result_on_another_device_is_refused(name: str) -> None:
    call, xs, outs = ENTRIES[name]
    there, here = CudaArray(0x5000, (xs,), FLOAT64, 0, None), np.ones(outs)
    with pytest.raises(
        UsageError, match=r"is on cuda:0( and another on the host; pass|, and what)"
    ):
        call(there, here)


def test_empty_arrays_lie_anywhere() -> None:
    whole = np.ones(8)
    for x, out in ((whole[3:3], whole), (whole, whole[3:3]), (whole[3:3], whole[3:3])):
        a, b = families.look(x, "x"), families.look(out, "out")
        assert not a.overlaps(b)
        operands.require_apart(a, b, "x")
        buckets.pairs([x, out], None, "allreduce")
        batch.exchange(PLACE, [(x, 1)], [(out, 1)])
    collective("allgather", whole[3:3], whole[4:4])
    collective("alltoall", whole[3:3], whole[:0])
    batch.gatherv(PLACE, whole[3:3], [0, 8], whole, 0, "gatherv")
    batch.scatterv(PLACE, whole, [0, 8], whole[3:3], 0, "scatterv")


def test_where_a_collective_may_run_in_place() -> None:
    whole = np.ones(4)
    collective("allgather", whole[:2], whole)
    collective("reduce_scatter", whole, whole[:2])
    collective("allgather", whole[:3], whole, [3, 1])
    batch.gatherv(PLACE, whole[:3], [3, 1], whole, 0, "gatherv")
    copied = RequestBuilder(KINDS["alltoall"], 0, 2, 0, None).request(whole, whole[:], ReduceOp.SUM)
    assert copied.copy is not None  # the result overwrites what is still to be read
    assert copied.x is copied.copy[1]
