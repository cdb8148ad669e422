"""The benchmark as a library: rows without a command, and the example of its page."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pycoll
from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.session import Session
from pycoll.benchmark.sweep import Sweep


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
def test_the_example_of_the_page_runs(root, capsys):
    page = (root / "docs" / "bench.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {"pycoll": pycoll, "np": np})
    assert re.fullmatch(r"[0-9.e-]+ us; 0 wrong elements\n", capsys.readouterr().out)
