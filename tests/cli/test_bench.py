"""``pycoll bench`` end to end: ranks, table, JSON, checks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from pycoll.benchmark.datatypes import names
from pycoll.benchmark.operation import OPERATIONS
from pycoll.dtypes import BY_NAME, OPS

DTYPES_OF_NUMPY = [name for name in BY_NAME if name != "bfloat16"]
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


def rows_of(done):
    """Return the cells of every row of the table."""
    return [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]


@pytest.mark.native
def test_spawned_ranks_print_a_table_and_write_json(root, tmp_path):
    path = tmp_path / "rows.json"
    arguments = ("--min", "8", "--max", "32K", "--factor", "64", "--repeats", "2")
    mixed = ("--arrays", "both", "--call", "both")
    done = bench(root, "--ranks", "2", *arguments, *mixed, "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is for terminals
    lines = [line for line in done.stdout.splitlines() if "warning" not in line]
    assert lines[0].startswith("# pycoll bench allreduce: 2 ranks, out of place")
    assert "library" in lines[1]
    result = json.loads(path.read_text())
    assert result["meta"].keys() >= {"commit", "machine", "versions", "launcher", "ranks"}
    assert result["meta"].keys() >= {"method", "date"}
    rows = result["rows"]
    assert len(rows) == len(rows_of(done)) == 3 * 4
    for row in rows:
        assert row.keys() >= ROW
        assert (row["library"], row["collective"], row["ranks"]) == ("pycoll", "allreduce", 2)
        assert row["wrong"] == 0
        time = row["time_us"]
        assert 0 < time["min"] <= time["median"]
        assert 0 < time["p50"] <= time["max"]
        assert time["p99"] is None or time["p50"] <= time["p99"] <= time["max"]
        assert row["calls"] > 0
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
    rows = rows_of(done)
    assert [(row[2], row[3], row[-1]) for row in rows] == [(dtype, op, "0")] * 2


@pytest.mark.native
@pytest.mark.parametrize("place", ["--in-place", "--out-of-place"])
@pytest.mark.parametrize("collective", OPERATIONS)
def test_every_collective_is_checked_and_right(root, collective, place):
    operation = OPERATIONS[collective]
    if place == "--in-place" and not operation.in_place:
        return  # it is refused: see below
    arguments = ["--ranks", "3", "--repeats", "1", place]
    if operation.sized:
        arguments += ["--min", "8", "--max", "96K", "--factor", "12288", "--arrays", "both"]
    if operation.collective:
        arguments += ["--call", "both"]
    if operation.rooted:
        arguments += ["--root", "1"]
    if operation.windowed:
        arguments += ["--window", "5", "--iters", "2"]
    done = bench(root, *arguments, collective=collective)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done)
    assert {row[-1] for row in rows} == {"0"}
    sizes_and_arrays = 2 * 2 if operation.sized else 1
    assert len(rows) == sizes_and_arrays * (2 if operation.collective else 1)


@pytest.mark.native
@pytest.mark.parametrize("collective", [n for n, o in OPERATIONS.items() if not o.between_two])
def test_every_collective_overlaps_computation_and_is_right(root, collective, tmp_path):
    path = tmp_path / "rows.json"
    sized = ["--min", "64K", "--max", "64K"] if OPERATIONS[collective].sized else []
    few = ["--overlap", "--iters", "2", "--repeats", "1", "--json", str(path)]
    done = bench(root, "--ranks", "2", *sized, *few, collective=collective)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["wrong"], row["call"]) == (0, "async")
    beside = row["overlap"]
    assert beside["overall_us"] > beside["compute_us"] > 0
    assert beside["pure_us"] > 0
    assert 0 <= beside["percent"] <= 100


@pytest.mark.native
def test_all_types_and_operators_are_one_run(root):
    few = ("--max", "16", "--repeats", "1", "--iters", "1", "--dtype", "all", "--op", "all")
    done = bench(root, "--ranks", "2", "--min", "16", *few)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [(row[2], row[3]) for row in rows_of(done)]
    left_out = [line for line in done.stdout.splitlines() if line.startswith("# left out: ")]
    assert len(left_out) == 0 if importlib.util.find_spec("ml_dtypes") else 1
    served = [name for name in BY_NAME if name not in "".join(left_out)]
    assert found == [(dtype, op) for dtype in served for op in OPS]


@pytest.mark.native
def test_what_all_types_name_and_is_not_served_is_said_and_kept(root, tmp_path):
    path = tmp_path / "rows.json"
    few = ("--max", "16", "--repeats", "1", "--iters", "1", "--dtype", "all")
    more = ("--json", str(path))
    done = bench(root, "--ranks", "2", "--min", "16", *few, *more, collective="broadcast")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    found = {row["dtype"] for row in result["rows"]}
    left_out = {text.partition(":")[0] for text in result["meta"]["left_out"]}
    assert found | left_out == set(names(reduces=False))
    assert not found & left_out
    assert set(DTYPES_OF_NUMPY) <= found
    for name in left_out:
        assert f"# left out: {name}: " in done.stdout


@pytest.mark.native
def test_all_types_are_those_of_numpy_where_nothing_adds_to_them(root):
    few = "'--max', '16', '--min', '16', '--repeats', '1', '--iters', '1', '--dtype', 'all'"
    program = (
        "import sys; sys.modules['ml_dtypes'] = None; from pycoll.cli import main; "
        f"sys.exit(main(['bench', 'allreduce', {few}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [row[2] for row in rows_of(done)] == DTYPES_OF_NUMPY
    assert "# left out: bfloat16: numpy has bfloat16 from ml_dtypes, which does" in done.stdout


@pytest.mark.native
def test_a_file_is_tried_before_and_not_left_empty(root, tmp_path):
    path = tmp_path / "rows.json"
    done = bench(root, "--max", "8", "--json", str(path), "--algorithm", "rong")
    assert done.returncode == 2
    assert not path.exists()
    path.write_text("what was there")
    done = bench(root, "--max", "8", "--json", str(path), "--algorithm", "rong")
    assert path.read_text() == "what was there"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("broadcast --op max", "broadcast reduces nothing; leave --op out"),
        ("pingpong --op all", "pingpong reduces nothing; leave --op out"),
        ("allreduce --root 0", "allreduce has no root; leave --root out"),
        ("barrier --dtype int8", "barrier moves no data; leave --dtype out"),
        ("barrier --min 8", "barrier moves no data; leave --min out"),
        ("barrier --step 8", "barrier moves no data; leave --step out"),
        ("barrier --arrays empty", "barrier moves no data; leave --arrays out"),
        ("barrier --in-place", "barrier has no form in place; leave --in-place out"),
        ("alltoallv --call plan", "alltoallv has no plan(); leave --call out"),
        ("sendrecv --call both", "sendrecv has no plan(); leave --call out"),
        ("allgather --window 2", "allgather has no window of messages; leave --window out"),
        ("bw --overlap", "bw is timed by calls that block; leave --overlap out"),
        ("allreduce --overlap --call plan", "--overlap times non-blocking calls; leave --call"),
        ("allreduce --dtype int16", "allreduce does not reduce int16, want one of float64, flo"),
        ("gatherv --algorithm ring", "is not run by an algorithm that can be chosen; leave --al"),
        ("allreduce --factor 0", "'0', want an integer of at least 2"),
        ("allreduce --factor 1", "'1', want an integer of at least 2"),
        ("allreduce --factor x", "'x', want an integer of at least 2"),
        ("allreduce --factor 2 --step 8", "not allowed with argument"),
        ("allreduce --iters 0", "'0', want an integer of at least 1"),
        ("allreduce --min 1000000G --max 1000000G", "lower --max, or --min"),
        ("allreduce --max 8 --json /proc/rows.json", "/proc/rows.json cannot be written: "),
        ("allreduce --max 8 --json /dev", "/dev cannot be written: Is a directory"),
        ("bw --ranks 1", "bw is between two ranks, and there is one; start with mpirun -n 2"),
        ("broadcast --root 2 --ranks 2", "--root is 2, want 0 to 1"),
        ("allreduce --dtype float64 --min 4", "--min is 4 and --max 268435456, want 8 (one float"),
    ],
)
@pytest.mark.native
def test_what_means_nothing_is_refused_in_one_line(root, arguments, words):
    collective, *rest = arguments.split()
    done = bench(root, *rest, collective=collective)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.native
def test_short_options_mean_what_nccl_tests_mean(root, tmp_path):
    path = tmp_path / "rows.json"
    short = ("-b", "8", "-e", "64", "-f", "2", "-d", "int32", "-o", "max", "-n", "3", "-w", "1")
    done = bench(root, "--ranks", "2", *short, "-r", "2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["nbytes"] for row in rows] == [8, 16, 32, 64]
    assert {(row["dtype"], row["op"], row["calls"]) for row in rows} == {("int32", "max", 3 * 2)}
    stepped = bench(root, "--ranks", "2", "-b", "8", "-e", "32", "-i", "8", "-n", "1", "-r", "1")
    assert [row[0] for row in rows_of(stepped)] == ["8", "16", "24", "32"]


@pytest.mark.native
def test_more_ranks_than_cores_is_warned_of_once_and_kept(root, tmp_path):
    path = tmp_path / "rows.json"
    ranks = len(os.sched_getaffinity(0)) + 1
    few = ("--max", "8", "--repeats", "1", "--iters", "1")
    done = bench(root, "--ranks", str(ranks), *few, "--json", str(path))
    assert done.returncode == 0, done.stderr
    words = f"{ranks} ranks share {ranks - 1} core"
    assert done.stdout.count(words) == 1
    assert any(words in text for text in json.loads(path.read_text())["meta"]["warnings"])


@pytest.mark.native
def test_under_pycoll_run_it_is_not_torchrun_that_launched(root):
    few = ("--max", "8", "--repeats", "1", "--iters", "1")
    command = ["run", "-n", "2", "-m", "pycoll", "bench", "allreduce", *few]
    done = subprocess.run(
        [sys.executable, "-m", "pycoll", *command],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "launched by pycoll run, " in done.stdout
    assert "torchrun" not in done.stdout


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
    words = "sendrecv is not run by an algorithm that can be chosen; leave --algorithm out"
    assert words in done.err


@pytest.mark.native
def test_several_algorithms_take_turns(root):
    small = ("--min", "4K", "--max", "4K", "--repeats", "1")
    done = bench(root, "--ranks", "2", "--algorithm", "ring,two_shot", *small)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
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
@pytest.mark.parametrize("collective", ["allreduce", "alltoallv", "sendrecv", "bibw"])
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


@pytest.mark.mpi
def test_mpirun_overlaps_both_libraries(tmp_path, launcher):
    path = tmp_path / "rows.json"
    few = ("--min", "64K", "--max", "64K", "--repeats", "1", "--iters", "2", "--overlap")
    command = ("-m", "pycoll", "bench", "allreduce", "--against", "mpi4py")
    launcher.run(2, *command, *few, "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert [(row["library"], row["call"]) for row in rows] == [
        ("pycoll", "async"),
        ("mpi4py", "async"),
    ]
    assert all(row["wrong"] == 0 and row["overlap"]["pure_us"] > 0 for row in rows)


@pytest.mark.mpi
def test_of_all_types_those_that_a_peer_lacks_are_said(tmp_path, launcher):
    path = tmp_path / "rows.json"
    few = ("--min", "16", "--max", "16", "--repeats", "1", "--iters", "1", "--dtype", "all")
    command = ("-m", "pycoll", "bench", "allreduce", "--against", "mpi4py")
    launcher.run(2, *command, *few, "--json", str(path))
    result = json.loads(path.read_text())
    found = {
        lib: [r for r in result["rows"] if r["library"] == lib] for lib in ("pycoll", "mpi4py")
    }
    types = {row["dtype"] for row in found["mpi4py"]}
    assert {"float64", "float32", "int8"} <= types
    left_out = " ".join(result["meta"]["left_out"])
    for row in result["rows"]:
        assert row["dtype"] in types or f"mpi4py does not serve {row['dtype']}" in left_out


@pytest.mark.native
def test_a_terminal_is_told_how_far_it_is(root):
    ours, theirs = pty.openpty()
    few = ["--ranks", "2", "--max", "32", "--repeats", "2", "--iters", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "pycoll", "bench", "allreduce", *few],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody writes
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
        table, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    text = said.decode()
    assert "8 float32 sum (1 of 2): repeat 2 of 2, pycoll" in text
    assert "32 float32 sum (2 of 2): " in text
    assert "repeat" not in table
    assert text.rpartition("\r")[2] == "\033[K"  # the line is gone in the end


@pytest.mark.native
def test_ctrl_c_ends_it_in_one_line(root):
    endless = ["--ranks", "2", "--max", "8", "--step", "8", "--repeats", "1000000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "pycoll", "bench", "allreduce", *endless],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert "# pycoll bench allreduce" in process.stdout.readline()  # ranks run
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "pycoll bench: interrupted\n"


@pytest.mark.native
def test_memory_that_the_system_refuses_is_one_line(cli, monkeypatch):
    monkeypatch.setattr("pycoll.benchmark.memory.available", lambda: None)  # nobody knows
    done = cli("bench", "allreduce", "--min", "1000000G", "--max", "1000000G")
    assert done.code == 2
    assert "1000000G is more than this machine gives memory for (Unable to allocate" in done.err
    assert done.err.count("\n") == 1


def test_without_matplotlib_the_command_says_so_before_it_measures(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = cli("bench", "allreduce", "--plot", str(tmp_path / "p.png"))
    assert done.code == 2
    assert "pip install matplotlib" in done.err


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["rows", "rows.xyz", "rows.json"])
def test_an_ending_that_is_no_picture_is_refused_before_anything_is_measured(cli, tmp_path, name):
    done = cli("bench", "allreduce", "--plot", str(tmp_path / name))
    assert done.code == 2
    assert f"{name}, want a file that ends in one of " in done.err
    assert "png" in done.err
