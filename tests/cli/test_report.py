"""The table and the JSON say the same, in the units that they name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pycoll.cli import report
from pycoll.cli.data import OPERATIONS, Problem
from pycoll.cli.measure import Case, Timing
from pycoll.dtypes import ReduceOp

KEYS = {"library", "collective", "ranks", "dtype", "nbytes", "algorithm", "transport"} | {
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "wrong",
    "arrays",
    "in_place",
    "call",
    "op",
    "count",
}


@pytest.fixture
def row():
    x = np.empty(250_000, np.float32)
    case = Case("pycoll", "ring", "shm", "empty", "plan", x, x, lambda: None, in_place=True)
    problem = Problem(OPERATIONS["allreduce"], x.size, "float32", ReduceOp.SUM, 0, 4)
    return report.row(case, Timing((100.0, 200.0, 400.0), 3), problem)


def test_row_has_the_keys_and_bandwidths_of_the_median(row):
    assert set(row) == KEYS
    assert row["time_us"] == {"min": 100.0, "median": 200.0, "p99": 400.0}
    assert row["algbw_GBps"] == pytest.approx(5.0)  # 1 MB in 200 us
    assert row["busbw_GBps"] == pytest.approx(5.0 * 2 * 3 / 4)
    assert row["in_place"] is True
    assert row["nbytes"] == 1_000_000
    assert json.loads(json.dumps(row)) == row


def test_line_stands_under_its_head(row):
    meta = report.meta("mpi4py", 4, {"pycoll": "1"})
    head = report.head(meta, "allreduce", in_place=False).splitlines()
    line = report.line(row)
    assert "4 ranks, out of place, launched by mpi4py" in head[0]
    assert len(head[1]) == len(head[2]) == len(line)
    for title, value in (("library", "pycoll plan empty"), ("algorithm", "ring")):
        assert line[head[1].index(title) :].startswith(value)
    assert line.split()[-1] == "3"


def test_meta_says_who_where_and_how():
    meta = report.meta("torchrun", 8, {"pycoll": "1", "mpi": "Open MPI v5"}, "verbs")
    assert set(meta) == {"commit", "machine", "versions", "launcher", "ranks"} | {
        "transport",
        "method",
        "date",
    }
    assert ", launched by torchrun, verbs between hosts, " in report.head(meta, "reduce", True)
    assert set(meta["machine"]) == {"cpu", "cores", "kernel"}
    assert meta["versions"].keys() >= {"python", "numpy", "pycoll", "mpi"}
    assert meta["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("number", "text"), [(8, "8"), (1000, "1000"), (4096, "4K"), (3 << 20, "3M"), (1 << 30, "1G")]
)
def test_sizes_are_written_as_they_are_read(number, text):
    from pycoll.cli.bench import nbytes

    assert report.nbytes(number) == text
    assert nbytes(text) == number


@pytest.mark.parametrize(
    ("collective", "crossings"),
    [
        ("allreduce", 1.5),
        ("broadcast", 1),
        ("reduce", 1),
        ("allgather", 0.75),
        ("reduce_scatter", 0.75),
        ("alltoall", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("sendrecv", 1),
        ("pingpong", 2),
    ],
)
def test_busbw_is_that_of_nccl_tests(collective, crossings):
    problem = Problem(OPERATIONS[collective], 1000, "float64", ReduceOp.SUM, 1, 4)
    x, out = problem.arrays(np.empty(1000), np.empty(1000))
    case = Case("pycoll", "a", "t", "numpy", "call", x, out, lambda: None)
    row = report.row(case, Timing((1.0,), 0), problem)
    assert (row["nbytes"], row["count"], row["collective"]) == (8000, 1000, collective)
    assert row["algbw_GBps"] == 8.0
    assert row["busbw_GBps"] == pytest.approx(8 * crossings)
    assert row["op"] == ("sum" if "reduce" in collective else "-")
