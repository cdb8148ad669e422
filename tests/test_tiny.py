"""The smoke test: one path through the whole house, in a few seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def test_an_algorithm_is_proved_and_becomes_programs() -> None:
    import pycoll
    from pycoll.algorithms import get
    from pycoll.program.lower import compile_all

    assert pycoll.verify("ring", size=4)
    assert len(compile_all(get("ring"), 4)) == 4


def test_import_loads_neither_numpy_nor_the_engine() -> None:
    code = "import sys, pycoll; print([m for m in ('numpy', 'pycoll._native') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.native
def test_one_rank_sums_to_itself() -> None:
    import pycoll

    with pycoll.init() as comm:
        assert np.array_equal(comm.allreduce(np.arange(5.0)), np.arange(5.0))


@pytest.mark.mpi
def test_two_ranks_sum(launcher, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        "import numpy as np, pycoll\n"
        "with pycoll.init() as comm:\n"
        "    assert comm.size == 2\n"
        "    assert comm.allreduce(np.full(1000, 1 << comm.rank)).tolist() == [3] * 1000\n"
    )
    launcher.run(2, str(script))
