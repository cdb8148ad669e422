"""Which arrays of a list share a message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll.errors import UsageError
from pycoll.runtime.plan import buckets
from pycoll.runtime.plan.buckets import ALONE_BYTES, SHARED_BYTES, Packing

SPECS = st.lists(st.tuples(st.sampled_from(("f4", "i8")), st.integers(0, 400_000)), max_size=40)


@given(SPECS)
def test_every_array_is_in_one_message_of_its_dtype(specs: list[tuple[str, int]]) -> None:
    found = buckets.pairs([np.empty(count, kind) for kind, count in specs], None, "allreduce")
    messages = buckets.buckets(found)
    assert sorted(id(x) for m in messages for x, _ in m.pairs) == sorted(id(x) for x, _ in found)
    for message in messages:
        assert {x.dtype for x, _ in message.pairs} == {message.dtype}
        if len(message.pairs) > 1:
            assert all(x.nbytes < ALONE_BYTES for x, _ in message.pairs)
            assert message.nbytes <= SHARED_BYTES
            assert message.pieces == tuple(x.count for x, _ in message.pairs)
    again = buckets.buckets(found)
    assert [(m.dtype, m.count, m.pieces) for m in again] == [
        (m.dtype, m.count, m.pieces) for m in messages
    ]


def test_packing_copies_in_and_out() -> None:
    x = [np.arange(3.0), np.empty(0), np.arange(5.0)]
    out = [np.zeros_like(a) for a in x]
    (message,) = buckets.buckets(buckets.pairs(x, out, "allreduce"))
    buffer = np.zeros(64, np.uint8)
    packing = Packing(message, buffer)
    packing.pack()
    assert list(buffer.view("f8")) == [0, 1, 2, 0, 1, 2, 3, 4]
    buffer.view("f8")[:] *= 2
    packing.unpack()
    assert [list(a) for a in out] == [[0, 2, 4], [], [0, 2, 4, 6, 8]]
    assert list(x[2]) == [0, 1, 2, 3, 4]


def test_inputs_may_be_shared_and_results_may_not() -> None:
    x, a, b = np.ones(4), np.ones(4), np.ones(4)
    buckets.pairs([x, x], [a, b], "allreduce")
    buckets.pairs([x[:2], x[2:]], None, "allreduce")
    buckets.pairs([x, x[:0], x[4:]], None, "allreduce")
    for xs, outs in (
        ([x, x], None),
        ([x, a], [b, b]),
        ([x, a], [b, x]),
        ([x, a], [a, b]),
        ([x[:3], x[2:]], None),
        ([np.ones(8), x[1:3]], [np.ones(8), x[0:2]]),
    ):
        with pytest.raises(UsageError, match=r"shares memory|overlaps"):
            buckets.pairs(xs, outs, "allreduce")
