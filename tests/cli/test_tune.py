"""``pycoll tune`` end to end: it measures, stores, and later jobs choose by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from pycoll.benchmark import quality
from pycoll.benchmark.calibration import Cell
from pycoll.cli.tune import distinct, summary, tuned
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
    small = ("--seconds", "3", "--max", "16K", "--collectives", "allreduce,gather")
    done = tune(root, tmp_path, "--ranks", "2", *small)
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
    small = ("--seconds", "3", "--max", "16K", "--collectives", "allreduce")
    launcher.run(2, "-m", "pycoll", "tune", *small)
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


def test_algorithms_that_do_the_same_are_measured_once():
    two = distinct("allreduce", Question("allreduce", 8, 2, 2))
    eight = distinct("allreduce", Question("allreduce", 8, 8, 8))
    assert {"one_shot", "two_shot"} <= set(two)
    assert "recursive_doubling" not in two  # of two ranks it is one_shot
    assert "recursive_doubling" in eight
    assert not any("hierarchical" in name for name in eight)


def test_the_summary_names_the_fastest():
    facts = Question("allreduce", 8, 2, 2)
    medians = {
        Cell("allreduce", 8, "one_shot"): 1e-6,
        Cell("allreduce", 8, "two_shot"): 2e-6,
        Cell("allreduce", 64, "two_shot"): 3e-6,
    }
    tuning = tuned(facts, medians)
    assert tuning.rows["allreduce", "two_shot"] == ((8, 2e-6), (64, 3e-6))
    lines = summary(medians, 0.25, 0.1).splitlines()
    assert lines[1].split() == ["allreduce", "8", "one_shot", "1.00"]
    assert lines[2].split() == ["allreduce", "64", "two_shot", "3.00"]
    assert lines[3] == (
        "# 3 cells measured; samples of a call differ by 10%; "
        "the fitted model is off by 25% (median)"
    )
    assert summary(medians, None, None).splitlines()[3] == "# 3 cells measured"


@pytest.mark.native
def test_what_is_too_little_is_not_stored(root, tmp_path):
    done = tune(root, tmp_path, "--ranks", "2", "--seconds", "0.001")
    assert done.returncode == 1
    told = r"pycoll tune: not stored: allgather: \d of 12 sizes, want 4; --seconds gives more time"
    assert re.search(told, done.stderr), done.stderr
    assert "wrote" not in done.stdout
    assert not list((tmp_path / "tuning").iterdir())  # made to see whether it can be written


def test_a_collective_with_too_few_sizes_is_left_out_and_named():
    sizes = {"allreduce": [8, 64, 256, 1024, 4096], "gather": [8, 64, 256, 1024, 4096]}
    medians = {Cell("allreduce", n, "ring"): 1e-6 for n in sizes["allreduce"][:4]}
    medians |= {Cell("gather", n, name): 1e-6 for n in (8, 64, 256) for name in ("a", "b")}
    kept = quality.kept(medians, sizes)
    assert {cell.collective for cell in kept.medians} == {"allreduce"}
    assert kept.dropped == ("gather: 3 of 5 sizes, want 4",)


def test_so_few_sizes_were_asked_for_that_they_are_enough():
    medians = {Cell("allreduce", 8, "ring"): 1e-6, Cell("allreduce", 64, "ring"): 1e-6}
    assert quality.kept(medians, {"allreduce": [8, 64]}) == (medians, ())


def test_a_noisy_machine_is_noticed():
    calm = {Cell("allreduce", n, "ring"): [1.0, 1.1, 1.0, 1.05] for n in (8, 64, 256)}
    noisy = {cell: [1.0, 9.0, 1.0, 7.0] for cell in calm}
    assert quality.remarks(quality.spread(calm), 0.1) == []
    (said,) = quality.remarks(quality.spread(noisy), 0.1)
    assert said.startswith("this machine is noisy: ")
    (said,) = quality.remarks(quality.spread({cell: [1.0] for cell in calm}), 0.1)
    assert said.startswith("no call was sampled 3 times")


def test_a_model_that_cannot_be_fitted_is_noticed():
    off = quality.off([2.5, 1 / 2.5, 2.2])
    (said,) = quality.remarks(0.0, off)
    assert "it is off by 150% in the median" in said
