"""``pycoll bench`` end to end: ranks, table, JSON, checks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pycoll.cli.bench import sizes

ROW = {"library", "collective", "ranks", "dtype", "nbytes", "algorithm", "transport", "time_us"} | {
    "algbw_GBps",
    "busbw_GBps",
    "wrong",
}


def bench(root, *arguments, launch=()):
    """Run the benchmark in a process of its own."""
    return subprocess.run(
        [*launch, sys.executable, "-m", "pycoll", "bench", "allreduce", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_sizes_are_whole_elements():
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
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
def test_every_kind_of_result_is_checked_and_right(root, dtype, op):
    small = ("--min", "8", "--max", "8K", "--factor", "1024", "--repeats", "1", "--in-place")
    done = bench(root, "--ranks", "3", "--dtype", dtype, "--op", op, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [(row[2], row[3], row[-1]) for row in rows] == [(dtype, op, "0")] * 2


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
def test_mpirun_alternates_with_mpi4py(root, tmp_path, launcher):
    path = tmp_path / "rows.json"
    arguments = ("--min", "8", "--max", "8K", "--factor", "1024", "--repeats", "2")
    command = ("-m", "pycoll", "bench", "allreduce", "--against", "mpi4py")
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
