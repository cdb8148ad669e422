"""``pycoll bench`` end to end: ranks, table, JSON, checks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pycoll.cli.bench import sizes
from pycoll.cli.data import OPERATIONS

ROW = {"library", "collective", "ranks", "dtype", "nbytes", "algorithm", "transport", "time_us"} | {
    "algbw_GBps",
    "busbw_GBps",
    "wrong",
}


def bench(root, *arguments, collective="allreduce"):
    """Run the benchmark in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pycoll", "bench", collective, *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_sizes_are_whole_elements_of_every_block():
    assert list(sizes(8, 4096, 4, 64)) == [64, 128, 512, 2048]
    assert list(sizes(8, 256 << 20, 4, 4))[:3] == [8, 32, 128]
    assert list(sizes(8, 64, 3, 8)) == [8, 24]
    assert list(sizes(10, 100, 3, 4)) == [8, 28, 88]


@pytest.mark.native
def test_spawned_ranks_print_a_table_and_write_json(root, tmp_path):
    path = tmp_path / "rows.json"
    arguments = ("--min", "8", "--max", "32K", "--factor", "64", "--repeats", "2")
    mixed = ("--arrays", "both", "--call", "both")
    done = bench(root, "--ranks", "2", *arguments, *mixed, "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is for terminals
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# pycoll bench allreduce: 2 ranks, out of place")
    assert "library" in lines[1]
    result = json.loads(path.read_text())
    assert result["meta"].keys() >= {"commit", "machine", "versions", "launcher", "ranks"}
    assert result["meta"].keys() >= {"method", "date"}
    rows = result["rows"]
    assert len(rows) == len(lines) - 3 == 3 * 4
    for row in rows:
        assert row.keys() >= ROW
        assert (row["library"], row["collective"], row["ranks"]) == ("pycoll", "allreduce", 2)
        assert row["wrong"] == 0
        assert 0 < row["time_us"]["min"] <= row["time_us"]["median"] <= row["time_us"]["p99"]
    assert {row["nbytes"] for row in rows} == {8, 512, 32 << 10}
    assert {(row["call"], row["arrays"]) for row in rows} == {
        (call, arrays) for call in ("call", "plan") for arrays in ("numpy", "empty")
    }


@pytest.mark.native
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float16", "avg"),
        ("float16", "max"),
        ("int8", "prod"),
        ("int8", "avg"),
        ("int8", "min"),
        ("float64", "sum"),
    ],
)
def test_every_kind_of_result_is_checked_and_right(root, dtype, op):
    small = ("--min", "8", "--max", "8K", "--factor", "1024", "--repeats", "1", "--in-place")
    done = bench(root, "--ranks", "3", "--dtype", dtype, "--op", op, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [(row[2], row[3], row[-1]) for row in rows] == [(dtype, op, "0")] * 2


@pytest.mark.native
@pytest.mark.parametrize("place", ["--in-place", "--out-of-place"])
@pytest.mark.parametrize("collective", OPERATIONS)
def test_every_collective_is_checked_and_right(root, collective, place):
    if place == "--in-place" and not OPERATIONS[collective].in_place:
        return  # it is refused: see below
    small = ("--min", "8", "--max", "96K", "--factor", "12288", "--repeats", "1", "--call", "both")
    done = bench(root, "--ranks", "3", *small, place, "--arrays", "both", collective=collective)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert {row[-1] for row in rows} == {"0"}
    assert len(rows) == 2 * 2 * (1 if rows[0][5] == "-" else 2)


def test_what_has_no_form_in_place_is_refused(cli):
    done = cli("bench", "alltoall", "--in-place")
    assert done.code == 2
    assert "alltoall has no form in place; leave --in-place out" in done.err


def test_an_algorithm_of_another_collective_is_refused(cli, own):
    done = cli("bench", "broadcast", "--algorithm", f"{own}:star")
    assert done.code == 2
    assert "own.py:star is for allreduce, want one for broadcast" in done.err


def test_between_two_ranks_no_algorithm_runs(cli):
    done = cli("bench", "sendrecv", "--algorithm", "ring")
    assert done.code == 2
    assert "sendrecv is not run by an algorithm; leave --algorithm out" in done.err


@pytest.mark.native
def test_several_algorithms_take_turns(root):
    small = ("--min", "4K", "--max", "4K", "--repeats", "1")
    done = bench(root, "--ranks", "2", "--algorithm", "ring,two_shot", *small)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[5] for row in rows] == ["ring", "two_shot"]


@pytest.mark.native
def test_ones_own_algorithm_is_timed_under_its_name(root, own):
    small = ("--min", "4K", "--max", "4K", "--repeats", "1")
    done = bench(root, "--ranks", "2", "--algorithm", f"{own}:star", *small)
    assert done.returncode == 0, done.stderr
    assert "star" in done.stdout.splitlines()[-1]


@pytest.mark.native
def test_one_rank_says_how_to_start_more(root):
    done = bench(root, "--min", "8", "--max", "8", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "start with mpirun -n 2, or add --ranks 2" in done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "sendrecv"])
def test_mpirun_alternates_with_mpi4py(root, tmp_path, launcher, collective):
    path = tmp_path / "rows.json"
    arguments = ("--min", "8", "--max", "8K", "--factor", "1024", "--repeats", "2")
    command = ("-m", "pycoll", "bench", collective, "--against", "mpi4py")
    done = launcher.run(2, *command, *arguments, "--json", str(path))
    result = json.loads(path.read_text())
    assert [row["library"] for row in result["rows"]] == ["pycoll", "mpi4py"] * 2
    assert all(row["wrong"] == 0 for row in result["rows"])
    assert result["meta"]["launcher"] == "mpi4py"
    assert result["meta"]["versions"].keys() >= {"mpi4py", "mpi"}
    assert done.stdout.count("# pycoll bench") == 1  # only rank 0 prints


@pytest.mark.mpi
def test_ranks_under_a_launcher_is_refused(launcher):
    command = ("-m", "pycoll", "bench", "allreduce", "--ranks", "2", "--max", "8")
    done = launcher.run(2, *command, check=False)
    assert done.returncode != 0
    assert "--ranks starts ranks, but mpi4py has done so; leave --ranks out" in done.stderr
    assert "Traceback" not in done.stderr
