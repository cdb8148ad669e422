"""The table and the JSON say the same, in the units that they name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pycoll.benchmark import metadata, report
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.benchmark.timing import Case, Timing
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
    "calls",
}


@pytest.fixture
def row():
    x = np.empty(250_000, np.float32)
    case = Case("pycoll", "ring", "shm", "empty", "plan", x, x, lambda: None, in_place=True)
    problem = Problem(OPERATIONS["allreduce"], x.size, "float32", ReduceOp.SUM, 0, 4)
    calls = np.arange(1.0, 101.0)
    return report.row(case, Timing((100.0, 200.0, 400.0), 3, calls), problem)


def test_row_has_the_keys_and_bandwidths_of_the_median(row):
    assert set(row) == KEYS
    assert row["time_us"] == {
        "min": 100.0,
        "median": 200.0,
        "p50": 50.0,
        "p99": 99.0,
        "max": 100.0,
    }
    assert row["calls"] == 100
    assert row["algbw_GBps"] == pytest.approx(5.0)  # 1 MB in 200 us
    assert row["busbw_GBps"] == pytest.approx(5.0 * 2 * 3 / 4)
    assert row["in_place"] is True
    assert row["nbytes"] == 1_000_000
    assert json.loads(json.dumps(row)) == row


def test_line_stands_under_its_head(row):
    meta = metadata.collect("mpi4py", 4, {"pycoll": "1"})
    head = report.head(meta, "allreduce", in_place=False).splitlines()
    line = report.line(row)
    assert "4 ranks, out of place, launched by mpi4py" in head[0]
    assert len(head[1]) == len(head[2]) == len(line)
    for title, value in (("library", "pycoll plan empty"), ("algorithm", "ring")):
        assert line[head[1].index(title) :].startswith(value)
    assert line.split()[-1] == "3"


def test_meta_says_who_where_and_how():
    meta = metadata.collect("torchrun", 8, {"pycoll": "1", "mpi": "Open MPI v5"}, "verbs")
    assert set(meta) == {"commit", "machine", "versions", "launcher", "ranks"} | {
        "transport",
        "method",
        "date",
        "warnings",
    }
    assert ", launched by torchrun, verbs between hosts, " in report.head(meta, "reduce", True)
    assert set(meta["machine"]) == {"cpu", "cores", "kernel"}
    assert meta["versions"].keys() >= {"python", "numpy", "pycoll", "mpi"}
    assert meta["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("number", "text"), [(8, "8"), (1000, "1000"), (4096, "4K"), (3 << 20, "3M"), (1 << 30, "1G")]
)
def test_sizes_are_written_as_they_are_read(number, text):
    from pycoll.cli.types import nbytes

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
        ("allgatherv", 0.75),
        ("reduce_scatterv", 0.75),
        ("alltoallv", 0.75),
        ("gatherv", 0.75),
        ("scatterv", 0.75),
        ("bw", 2),  # both pairs of the four ranks
        ("bibw", 4),
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


def windows(name, size, window, us):
    problem = Problem(OPERATIONS[name], 250, "float32", ReduceOp.SUM, 0, size, window=window)
    x, out = problem.arrays(np.empty(250 * window, "f"), np.empty(250 * window, "f"))
    case = Case("pycoll", "-", "-", "numpy", "call", x, out, lambda: None)
    return report.row(case, Timing((us,), 0), problem)


def test_a_window_counts_as_all_its_messages_and_pairs_add_up():
    row = windows("bw", 4, 10, 5.0)
    assert (row["nbytes"], row["window"]) == (1000, 10)
    assert row["algbw_GBps"] == 2.0  # 10 kB in 5 us, one pair, one way
    assert row["busbw_GBps"] == 4.0
    assert row["rate_Mps"] == 4.0  # 20 messages in 5 us
    both = windows("bibw", 4, 10, 5.0)
    assert (both["algbw_GBps"], both["busbw_GBps"], both["rate_Mps"]) == (2.0, 8.0, 8.0)


@pytest.mark.parametrize(("extra", "name"), [("rate", "messages"), ("overlap", "overlap")])
def test_columns_that_some_rows_have_stand_under_their_titles(row, extra, name):
    found = windows("bw", 2, 4, 5.0) if extra == "rate" else row
    if extra == "overlap":
        found["overlap"] = {"overall_us": 3.0, "compute_us": 1.0, "pure_us": 2.0, "percent": 7.5}
    meta = metadata.collect("spawn", 2, {})
    head = report.head(meta, "bw", False, extra).splitlines()
    line = report.line(found)
    assert len(head[1]) == len(head[2]) == len(line)
    assert name in head[1]
    want = f"{found['rate_Mps']:.2f}" if extra == "rate" else "7.50"
    assert line.split()[-2] == want


def test_a_warning_stands_above_the_table_once():
    meta = metadata.collect("spawn", 4, {}, warnings=["4 ranks share 2 cores"])
    assert report.head(meta, "reduce", False).count("# warning: 4 ranks share 2 cores\n") == 1
    assert json.loads(json.dumps(meta))["warnings"] == ["4 ranks share 2 cores"]


def test_what_so_few_calls_do_not_have_is_a_dash(row):
    row["time_us"]["p99"] = None
    assert report.line(row).split()[-5] == "-"
