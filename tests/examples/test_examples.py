"""Every example runs, under each launcher and without one, and does what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)
NAMES = [
    "allreduce",
    "own_algorithm",
    "matmul",
    "heat",
    "sort",
    pytest.param("digits", marks=needs_sklearn),
]

#: How to run a file that has no way of its own to start ranks.
SPAWN = "import pycoll, runpy, sys; pycoll.spawn(lambda: runpy.run_path(sys.argv[1]) and None, 2)"


def check(name: str, out: str) -> None:
    """Check what the two ranks of an example printed."""
    if name == "allreduce":
        for rank in range(2):
            assert f"rank {rank} of 2 holds [3. 3. 3. 3.]" in out
    elif name == "own_algorithm":
        assert "rank 0: right" in out
        assert "rank 1: right" in out
        assert "PostconditionError" in out
        assert "lacks the contribution of rank 1" in out
    elif name == "matmul":
        assert re.search(r"1 x 2 ranks, largest error \d", out)
    elif name == "heat":
        assert len(re.findall(r"rank \d: as computed alone; warmth of the rod 177\.", out)) == 2
    elif name == "sort":
        assert len(re.findall(r"rank \d: \d+ of 200000 numbers, in order", out)) == 2
    else:
        found = re.findall(r"rank \d: weights identical to the bit, accuracy ([\d.]+)", out)
        assert len(found) == 2
        assert len(set(found)) == 1
        assert float(found[0]) > 0.9


@pytest.mark.pure
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_at_most_60_lines(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.pure
def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES} == {*(n for n in NAMES if isinstance(n, str)), "digits"}


@pytest.mark.parametrize("name", NAMES)
def test_without_a_launcher(name, root):
    path = f"examples/{name}.py"
    command = ["-c", SPAWN, path] if name == "allreduce" else [path, "2"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check(name, done.stdout)


@pytest.mark.mpi
@pytest.mark.parametrize("name", NAMES)
def test_under_mpirun(name, launcher):
    check(name, launcher.run(2, f"examples/{name}.py").stdout)
