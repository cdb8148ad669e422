"""``pycoll tune`` end to end: it measures, stores, and later jobs choose by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from pycoll.benchmark.calibration import Cell
from pycoll.cli.tune import not_measured, summary
from pycoll.cost import Question, Tuning


def tune(root, cache, *arguments):
    """Run the calibration in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pycoll", "tune", *arguments],
        cwd=root,
        env=os.environ | {"PYCOLL_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


LATER = """
import pycoll

with pycoll.init() as comm:
    told = comm.explain("allreduce", 4096)
    if comm.rank == 0:
        print(told)
"""


@pytest.mark.native
def test_what_is_measured_is_found_by_the_next_job(root, tmp_path):
    small = ("--ranks", "2", "--max", "16K", "--collectives", "allreduce,gather")
    for seconds in (3, 12, 48):  # a busy machine needs more of them
        done = tune(root, tmp_path, "--seconds", str(seconds), *small)
        if "--seconds gives more time" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# pycoll tune: 2 ranks")
    assert {line.split()[0] for line in lines[2:-2]} <= {"allreduce", "gather"}
    assert lines[-1].startswith("# wrote ")
    (file,) = (tmp_path / "tuning").iterdir()
    stored = json.loads(file.read_text())
    tuning = Tuning.from_json(stored)
    assert tuning.size == 2
    assert tuning.measured("allreduce", "one_shot", 4096) is not None
    assert stored["meta"].keys() >= {"commit", "machine", "method", "date"}


@pytest.mark.mpi
def test_a_later_job_chooses_by_it(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("PYCOLL_CACHE", str(tmp_path))
    small = ("--max", "16K", "--collectives", "allreduce")
    for seconds in (3, 12, 48):  # a busy machine needs more of them
        command = ("-m", "pycoll", "tune", "--seconds", str(seconds), *small)
        done = launcher.run(2, *command, check=False)
        if "--seconds gives more time" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    script = tmp_path / "later.py"
    script.write_text(LATER)
    told = launcher.run(2, str(script)).stdout
    assert re.search(r"(Measured|Interpolated) \d+", told), told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--seconds", "0"), "--seconds is 0.0, want more than 0"),
        (("--collectives", "sum"), "'sum' is no collective, want some of allreduce"),
        (("--max", "x"), "is not a size"),
    ],
)
def test_bad_arguments(cli, arguments, says):
    done = cli("tune", *arguments)
    assert done.code == 2
    assert says in done.err


@pytest.mark.native
def test_one_rank_has_nothing_to_choose(cli):
    done = cli("tune")
    assert done.code == 2
    assert "one rank has nothing to choose" in done.err


def test_the_summary_names_the_fastest():
    medians = {
        Cell("allreduce", 8, "one_shot"): 1e-6,
        Cell("allreduce", 8, "two_shot"): 2e-6,
        Cell("allreduce", 64, "two_shot"): 3e-6,
    }
    lines = summary(medians, 0.25, 0.1).splitlines()
    assert lines[1].split() == ["allreduce", "8", "one_shot", "1.00"]
    assert lines[2].split() == ["allreduce", "64", "two_shot", "3.00"]
    assert lines[3] == (
        "# 3 cells measured; samples of a call differ by 10%; "
        "the fitted model is off by 25% (median)"
    )
    assert summary(medians, None, None).splitlines()[3] == "# 3 cells measured"


def test_it_says_what_it_does_not_measure():
    lines = list(not_measured(["gather", "alltoall"], Question("allreduce", 8, 512, 8)))
    assert (
        "# not measured, as it is not offered: alltoall pairwise touches 511 peers, more than 64\n"
    ) in lines
    assert not any(" bruck " in line for line in lines)
    assert not list(not_measured(["alltoall"], Question("allreduce", 8, 64, 8)))


@pytest.mark.native
def test_what_is_too_little_is_not_stored(root, tmp_path):
    done = tune(root, tmp_path, "--ranks", "2", "--seconds", "0.001")
    assert done.returncode == 1
    told = r"pycoll tune: not stored: allgather: \d of 12 sizes, want 4; --seconds gives more time"
    assert re.search(told, done.stderr), done.stderr
    assert "wrote" not in done.stdout
    assert not list((tmp_path / "tuning").iterdir())  # made to see whether it can be written
