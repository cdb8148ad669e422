"""Bad arguments cost one line and exit code 2, whatever the command."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pycoll


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["verify", "ring"], "--size"),
        (["verify", "ring", "--size", "0"], "'0', want an integer of at least 1"),
        (["verify", "rong", "--size", "4"], "algorithm is 'rong', want one of binomial, "),
        (["verify", "nowhere.py:f", "--size", "4"], "nowhere.py is not a file"),
        (["show", "ring", "--size", "4", "--rank", "4"], "--rank is 4, want 0 to 3"),
        (["show", "ring", "--size", "4", "--direct"], "add --program"),
        (["bench"], "COLLECTIVE"),
        (["bench", "allreduce", "--min", "0"], "'0' is not a size"),
        (["bench", "allreduce", "--max", "5X"], "'5X' is not a size"),
        (["bench", "allreduce", "--min", "2"], "--min is 2 and --max 268435456, want 4 (one"),
        (["bench", "allreduce", "--min", "64", "--max", "8"], "--min is 64 and --max 8"),
        (["bench", "allreduce", "--factor", "1"], "'1', want an integer of at least 2"),
        (["bench", "allreduce", "--repeats", "x"], "'x', want an integer of at least 1"),
        (["bench", "allreduce", "--dtype", "float12"], "invalid choice: 'float12'"),
        (["bench", "allreduce", "--op", "mean"], "invalid choice: 'mean'"),
        (["bench", "allreduce", "--against", "nccl"], "'nccl' is not served, want some of mpi4py"),
        (["bench", "allreduce", "--json", "/nowhere/f.json"], "/nowhere is not a directory"),
        (["bench", "allreduce", "--algorithm", "rong"], "algorithm is 'rong'"),
        (["bench", "allreduce", "--in-place", "--out-of-place"], "not allowed with"),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(cli, arguments, message):
    done = cli(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_help_names_every_command(cli):
    done = cli("--help")
    assert done.code == 0
    for command in ("info", "verify", "show", "bench", "run"):
        assert command in done.out


def test_python_m_runs_the_same_command(root):
    done = subprocess.run(
        [sys.executable, "-m", "pycoll", "verify", "ring", "--size", "2"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ring at 2 ranks is right")


def test_a_reader_that_goes_away_is_no_traceback(root):
    shell = f"{sys.executable} -m pycoll show ring --size 24 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("schedule ring allreduce size 24")
    assert done.stderr == ""


def test_the_version():
    command = (sys.executable, "-m", "pycoll", "--version")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"pycoll {pycoll.__version__}\n"
