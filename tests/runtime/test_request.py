"""What becomes of the arrays of a call: counts, defaults, in place, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pycoll.dtypes import ReduceOp
from pycoll.errors import UsageError
from pycoll.runtime.plan.request import KINDS, Request, RequestBuilder


def ask(
    name: str,
    x: Any = None,
    out: Any = None,
    rank: int = 1,
    size: int = 3,
    root: Any = 0,
    counts: Any = None,
) -> Request:
    return RequestBuilder(KINDS[name], rank, size, root, counts).request(x, out, ReduceOp.MAX)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("allreduce", (6, 6, 6)),
        ("reduce", (6, 6, 6)),
        ("allgather", (6, 18, 18)),
        ("reduce_scatter", (6, 2, 6)),
        ("alltoall", (6, 6, 6)),
        ("gather", (6, 18, 18)),
        ("scatter", (6, 2, 6)),
    ],
)
def test_on_the_root_lengths_follow_from_x(name: str, elements: tuple[int, int, int]) -> None:
    made = ask(name, np.ones(6), root=1 if KINDS[name].collective.rooted else 0)
    assert made.x is not None
    assert made.out is not None
    assert (made.x.count, made.out.count, made.call.count) == elements
    assert made.call.op is (ReduceOp.MAX if KINDS[name].collective.reduces else ReduceOp.SUM)


def test_away_from_the_root() -> None:
    x, out = np.ones(6), np.ones(2)
    gathered = ask("gather", x, "not looked at")
    assert (gathered.out, gathered.result, gathered.call.count) == (None, None, 18)
    reduced = ask("reduce", x, "not looked at")
    assert (reduced.out, reduced.addresses) == (None, (x.ctypes.data, 0))
    scattered = ask("scatter", "not looked at", out)
    assert scattered.x is None
    assert scattered.result is out
    assert scattered.call.count == 6
    sent = ask("broadcast", x, x)
    assert (sent.x, sent.addresses) == (None, (0, x.ctypes.data))
    assert sent.result is x


def test_equal_counts_are_the_same_call() -> None:
    x = np.ones(2)
    assert ask("allgather", x).call == ask("allgather", x, counts=[2, 2, 2]).call
    assert ask("allgather", x, counts=[1, 2, 2]).call.counts == (1, 2, 2)
    assert ask("allgather", x[:0], counts=np.zeros(3, int)).call.counts == ()


def test_in_place() -> None:
    x = np.arange(9.0)
    assert ask("allgather", x[3:6], x).result is x
    assert ask("gather", x[3:6], x, root=1).result is x
    assert ask("reduce_scatter", x, x[3:6]).result.base is x
    assert ask("scatter", x, x[3:6], root=1).result.base is x
    assert ask("scatter", x, root=1).result.tolist() == [3, 4, 5]
    assert ask("allgather", x[4:9], x, counts=[4, 5, 0]).result is x
    assert ask("allgather", x[9:], x, counts=[4, 0, 5]).result is x
    turned = ask("alltoall", x, x)
    assert turned.copy is not None
    assert [view.address for view in turned.copy] == [x.ctypes.data, turned.addresses[0]]
    assert turned.addresses[0] != turned.addresses[1] == x.ctypes.data


X = np.ones(6)
FIXED = np.ones(6)
FIXED.flags.writeable = False


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("allgather", {}, "^allgather: x is None on rank 1, want an array there$"),
        ("scatter", {}, "^scatter: out is None on rank 1, want an array there$"),
        ("scatter", {"rank": 0}, "^scatter: x is None on rank 0, want an array there$"),
        ("broadcast", {}, "^broadcast: x is None on rank 1, want an array there$"),
        ("reduce_scatter", {"x": np.ones(7)}, "x has 7 elements, want a multiple of 3, the num"),
        (
            "alltoall",
            {"x": np.ones((2, 3))},
            r"the first axis of x has length 2 \(shape \(2, 3\)\), want a multiple of 3.*out=",
        ),
        ("scatter", {"x": np.ones((2, 3)), "rank": 0}, "first axis of x has length 2"),
        ("allgather", {"x": X, "out": np.ones(17)}, "^allgather: out has 17 elements, want 18$"),
        ("alltoall", {"x": X, "out": np.ones(9)}, "out has 9 elements, want 6"),
        ("allgather", {"x": X, "out": np.ones(18, "f4")}, "out has dtype float32, want float64"),
        ("allgather", {"x": X, "out": FIXED}, "out has 6 elements|out is read-only"),
        ("reduce", {"x": X, "out": np.ones((2, 3)), "rank": 0}, r"out has shape \(2, 3\), want"),
        ("reduce", {"x": FIXED, "rank": 0}, "x is read-only; pass an array to write the result"),
        ("broadcast", {"x": FIXED, "out": FIXED}, "broadcast: x is read-only"),
        ("broadcast", {"x": FIXED, "out": FIXED, "rank": 0}, "broadcast: x is read-only"),
        (
            "allgather",
            {"x": np.ones(18)[0:6], "out": None, "counts": [6, 5, 6]},
            "^allgatherv: x has 6 elements, want 5$",
        ),
        ("reduce_scatter", {"x": X, "counts": [1, 2, 4]}, "reduce_scatterv: x has 6 elements, wa"),
        ("allgather", {"x": X, "counts": [6, 6]}, r"counts is \[6, 6\], want 3 numbers of elem"),
        ("allgather", {"x": X, "counts": [6, 6, -1]}, r"counts is \[6, 6, -1\], want 3 numbers"),
        ("allgather", {"x": X, "counts": [6, 6, 0.5]}, r"counts is \[6, 6, 0.5\], want 3 numbers"),
        ("reduce", {"x": X, "root": 3}, "^reduce: root is 3, want a rank, 0 to 2$"),
        ("reduce", {"x": X, "root": 1.0}, "root is 1.0, want a rank, 0 to 2"),
    ],
)
def test_refusals(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(name, **arguments)


def test_arrays_that_overlap_otherwise_than_in_place() -> None:
    x = np.arange(18.0)
    for name, arguments, cure in (
        ("allgather", {"x": x[0:6], "out": x}, "this rank's own part of out as x"),
        ("gather", {"x": x[7:13], "out": x, "root": 1}, "this rank's own part of out as x"),
        ("reduce_scatter", {"x": x, "out": x[0:6]}, "this rank's own part of x"),
        ("scatter", {"x": x, "out": x[12:], "root": 1}, "this rank's own part of x"),
        ("alltoall", {"x": x[:12], "out": x[3:15]}, "pass the same array or"),
        ("allreduce", {"x": x[:12], "out": x[3:15]}, r"pass the same array \(in place\) or"),
    ):
        with pytest.raises(UsageError, match=rf"out begins -?\d+ bytes from x and .*{cure}"):
            ask(name, **arguments)
