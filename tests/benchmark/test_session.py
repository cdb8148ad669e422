"""The benchmark as a library: rows without a command, and the example of its page."""

from __future__ import annotations

import re

import numpy as np
import pytest
from waiting import wait_until

import pycoll
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.session import Session
from pycoll.benchmark.sweep import Sweep


class Lazy:
    """A library that sends what is left of a call in the next one, as MPI may.

    Rank 0 ends a call when rank 1 has sent for it, and rank 1 is one message behind.
    """

    name, versions = "lazy", {}

    def __init__(self, rank, sent):
        self.rank, self.sent, self.calls = rank, sent, 0
        self.settle()

    def bind(self, problem, x, out, in_place):
        def call():
            if self.rank == 1:
                self.settle()
            self.calls += 1
            if self.rank == 0:
                wait_until(lambda: int(self.sent.read_text() or 0) >= self.calls, 20)
            out[:] = problem.expected

        return call

    def settle(self):
        if self.rank == 1:
            self.sent.write_text(str(self.calls))

    def close(self):
        pass


@pytest.mark.native
def test_a_session_yields_a_row_for_each_size_and_operator(capfd):
    def rank():
        sweep = Sweep(OPERATIONS["allreduce"], max=32, ops=("sum", "max"), iters=2, repeats=1)
        said = []
        with pycoll.init() as comm:
            session = Session(comm, sweep, [], {"pycoll": "1"}, said.append)
            rows = list(session.rows())
        assert session.meta["versions"].keys() >= {"pycoll", "numpy"}
        return [(row["op"], row["nbytes"], row["wrong"]) for row in rows], said

    for rows, said in pycoll.spawn(rank, 2, timeout=60):
        assert rows == [("sum", 8, 0), ("sum", 32, 0), ("max", 8, 0), ("max", 32, 0)]
        assert said[0] == "8 float32 sum (1 of 4): pycoll: warming up"
        assert said[-1] == ""
    assert capfd.readouterr().out == ""  # whoever asked prints


@pytest.mark.native
def test_what_a_library_leaves_to_its_next_call_is_sent_before_ranks_compare_times(tmp_path):
    def rank():
        sweep = Sweep(OPERATIONS["allreduce"], max=8, iters=2, repeats=1)
        with pycoll.init() as comm:
            lazy = Lazy(comm.rank, tmp_path / "sent")
            comm.barrier()
            return [row["wrong"] for row in Session(comm, sweep, [lazy], {}).rows()]

    assert pycoll.spawn(rank, 2, timeout=60) == [[0, 0]] * 2


@pytest.mark.native
def test_the_example_of_the_page_runs(root, capsys):
    page = (root / "docs" / "bench.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {"pycoll": pycoll, "np": np})
    assert re.fullmatch(r"[0-9.e-]+ us; 0 wrong elements\n", capsys.readouterr().out)
