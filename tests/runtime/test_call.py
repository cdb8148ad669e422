"""What ranks ask for alike: its bytes, and its words."""

from __future__ import annotations

import pytest

import pycoll
from pycoll import ScheduleBuilder
from pycoll.algorithms import get
from pycoll.dtypes import FLOAT32, INT64, ReduceOp
from pycoll.runtime.plan.call import BARRIER, Call

SUM = ReduceOp.SUM


@pycoll.algorithm("allreduce")
def exchange(b: ScheduleBuilder) -> None:
    b.chunks(1)
    b.send(b.output[0], to=1 - b.rank)
    b.recv_reduce(b.output[0], frm=range(b.size))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("allreduce", SUM, FLOAT32, 1024), "allreduce(sum, float32, 1024 elements)"),
        (
            Call("allreduce", ReduceOp.MAX, FLOAT32, 1, pieces=(1, 0)),
            "allreduce(max, float32, 2 arrays of 1 element in all)",
        ),
        (Call("broadcast", SUM, FLOAT32, 10, root=2), "broadcast(float32, 10 elements, root 2)"),
        (Call("reduce", SUM, INT64, 1, root=1), "reduce(sum, int64, 1 element, root 1)"),
        (Call("alltoall", SUM, INT64, 12), "alltoall(int64, 12 elements)"),
        (
            Call("allgather", SUM, INT64, 3, counts=(2, 0, 1)),
            "allgatherv(int64, 3 elements as [2, 0, 1])",
        ),
        (
            Call("reduce_scatter", SUM, INT64, 1, counts=(1, *[0] * 20)),
            "reduce_scatterv(sum, int64, 1 element)",
        ),
        (BARRIER, "barrier()"),
    ],
)
def test_how_a_call_is_named(call: Call, text: str) -> None:
    assert call.text(None) == text


def test_an_algorithm_is_named_where_the_user_chose_it() -> None:
    call = Call("allreduce", SUM, FLOAT32, 1024)
    assert call.text(get("ring")) == "allreduce(sum, float32, 1024 elements, ring)"
    assert call.text(exchange).startswith("allreduce(sum, float32, 1024 elements, exchange ")


def test_bytes_of_the_blocks() -> None:
    assert Call("allreduce", SUM, FLOAT32, 10).blocks(4) == (40,)
    assert Call("broadcast", SUM, FLOAT32, 10, root=3).blocks(4) == (40,)
    assert Call("alltoall", SUM, FLOAT32, 12).blocks(4) == (12, 12, 12, 12)
    assert Call("allgather", SUM, FLOAT32, 3, counts=(1, 0, 2)).blocks(3) == (4, 0, 8)
    assert Call("allgather", SUM, INT64, 3, counts=(1, 0, 2)).nbytes == 24
