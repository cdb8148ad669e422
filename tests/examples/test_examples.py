"""Every example runs, under each launcher and without one, and does what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.py"))


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


NAMES = [
    "allreduce",
    "own_algorithm",
    "matmul",
    "heat",
    "sort",
    pytest.param("digits", marks=needs("sklearn")),
    pytest.param("jax_fit", marks=needs("jax")),
]
#: Run by tests of their own.
PARTS = {"elastic", "learn", "model", "train"}


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
    elif name == "jax_fit":
        assert len(re.findall(r"rank \d: error 0\.\d+, as computed alone", out)) == 2
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
    named = {name if isinstance(name, str) else name.values[0] for name in NAMES}
    assert {path.stem for path in EXAMPLES} == named | PARTS


@pytest.mark.parametrize("name", NAMES)
def test_without_a_launcher(name, root):
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", "2"],
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


@pytest.mark.parametrize("name", ["allreduce", "own_algorithm"])
def test_under_pycoll_run(name, root):
    check(name, by_pycoll_run(root, f"examples/{name}.py"))


def by_pycoll_run(root: Path, *arguments: str) -> str:
    """Run a program on two ranks, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pycoll", "run", "-n", "2", *arguments],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs("torch")
def test_gpt_learns_the_same_over_either_backend(root):
    losses = {}
    for backend, how in (("gloo", "ddp"), ("pycoll", "ddp"), ("pycoll", "fsdp2")):
        asked = ("--steps", "11", "--backend", backend, "--how", how)
        out = by_pycoll_run(root, "examples/gpt/train.py", *asked)
        last = rf"\[0\] {how} over {backend}: [\d.]+ ms a step, of which \d+% go to communication"
        assert re.search(last, out), out
        losses[backend, how] = re.findall(r"^\[0\] step \d+: loss (.*)$", out, re.M)
    first, later = map(float, losses["gloo", "ddp"])
    assert later < 0.75 * first
    # The sum of two ranks has one order, and its half is exact: not even the last digit differs.
    assert len({tuple(found) for found in losses.values()}) == 1, losses
