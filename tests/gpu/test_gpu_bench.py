"""bench/gpu without a GPU: what it plans, what it refuses, and a run over stand-ins for both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakecuda
import pytest

sys.path += [
    str(Path(__file__).parents[2] / folder) for folder in ("bench/gpu", "bench", "tests/gpu")
]

import arguments
import figures
import many_gpus
import nccl
import one_gpu
import rows
from floors import Floors

from pycoll.benchmark.operation import OPERATIONS
from pycoll.benchmark.problem import Problem
from pycoll.dtypes import ReduceOp
from pycoll.errors import TransportError, UnavailableError

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "gpu"
needs_stand_in = pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")


def test_plans_have_one_bound_of_blocks_for_both_libraries() -> None:
    options = one_gpu.parse(["--min", "8", "--max", "1K", "--factor", "8"])
    plans = list(one_gpu.plans(options))
    assert [(plan.ranks, plan.blocks) for plan in plans] == [(2, 32), (4, 16)]
    assert plans[0].sizes == (8, 64, 512, 1024)
    assert one_gpu.environment(plans[1]) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": "16",
        "NCCL_MIN_CTAS": "16",
        "PYCOLL_CUDA_BLOCKS": "16",
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    options = one_gpu.parse(["--ranks", "8", "--blocks", "4"])
    assert [(plan.ranks, plan.blocks) for plan in one_gpu.plans(options)] == [(8, 4)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--modes", "eager,lazy"], "--modes names 'lazy'"),
        (["--min", "0"], "want 1 <= --min"),
        (["--min", "1K", "--max", "8"], "want 1 <= --min"),
        (["--factor", "1"], "--factor of at least 2"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--collective", "allreduce,barrier"], "--collective names 'barrier', want some of all"),
        (["--ranks", "1,2"], "one rank sends nothing"),
    ],
)
def test_what_cannot_be_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        one_gpu.parse(given)
    assert said in capsys.readouterr().err


def test_sizes_as_they_are_written() -> None:
    assert [arguments.nbytes(text) for text in ("8", "64K", "256m", "1G")] == [
        8,
        65536,
        268435456,
        1 << 30,
    ]
    found = arguments.sizes(many_gpus.parse([]))
    assert (found[0], found[1], found[-1]) == (8, 32, 1 << 30)
    assert arguments.sizes(one_gpu.parse(["--min", "8", "--max", "32"])) == (8, 32)


def test_what_ranks_that_share_a_gpu_read_and_write() -> None:
    touched = {name: figures.touched(OPERATIONS[name], 4, 100) for name in arguments.COLLECTIVES}
    assert touched == {
        "allreduce": 800,
        "broadcast": 400,  # the root reads, three others write
        "reduce": 500,
        "allgather": 500,
        "reduce_scatter": 500,
        "alltoall": 800,
        "gather": 200,
        "scatter": 200,
    }


class Half(Floors):
    """A copy by b blocks takes b GB/s, a flag 1 us."""

    def __init__(self) -> None:
        self.hop, self.copy = lambda: 1e-6, lambda blocks: blocks * 1e9


def test_floors_of_a_row_are_those_of_the_blocks_that_ran() -> None:
    problem = Problem(OPERATIONS["allreduce"], 1000, "float32", ReduceOp.SUM, 0, 2)
    own = row("pycoll", 4000, 8.0) | {"blocks": 4}
    rows.add_floors(own, problem, 4e9, Half())
    assert own["floor_us"] == pytest.approx(4.0)  # 16,000 B at 4 GB/s
    assert own["of_floor"] == pytest.approx(0.5)
    assert own["blocks_floor_us"] == pytest.approx(2.0)  # by 8 blocks
    assert own["of_blocks_floor"] == pytest.approx(0.25)
    assert (own["hop_us"], own["hops"]) == (1.0, 8.0)
    theirs = row("nccl", 4000, 8.0) | {"blocks_at_most": 16}
    rows.add_floors(theirs, problem, 4e9, None)
    assert "hops" not in theirs
    assert "blocks_floor_us" not in theirs


def row(library: str, nbytes: int, median: float, mode: str = "graph") -> dict[str, Any]:
    time = {"min": median, "median": median, "p99": median}
    shared = {"ranks": 2, "mode": mode, "nbytes": nbytes, "library": library, "wrong": 0}
    shared |= {"collective": "allreduce"}
    return shared | {"time_us": time, "busbw_GBps": 1.0, "of_floor": 0.5}


def test_ratios_and_claims() -> None:
    rows = [row("pycoll", 8, 3.0), row("nccl", 8, 6.0), row("pycoll", 64, 4.0)]
    rows += [row("pycoll", 64 << 20, 100.0), row("nccl", 64 << 20, 95.0)]
    found = figures.ratios(rows)
    assert [entry["ratio"] for entry in found] == [0.5, pytest.approx(100 / 95)]
    assert list(figures.summary(rows)) == [
        "# 2 ranks, graph: latency up to 64 KiB at most 0.50 of NCCL's",
        "# 2 ranks, graph: bandwidth from 64 MiB at least 0.95 of NCCL's",
    ]
    told = rows[0] | {"blocks": 4, "algorithm": "one_shot", "protocol": "LL", "hops": 2.5}
    assert "50.0% of the floor    2.5 hops" in figures.line(told)
    assert figures.line(told).endswith("0 wrong; one_shot, 4 blocks, LL")
    assert figures.line(rows[1]).endswith("blocks unknown")
    assert figures.line(rows[1] | {"blocks_at_most": 16}).endswith("at most 16 blocks")
    assert list(figures.summary([told, told | {"nbytes": 16, "hops": 3.0}])) == [
        "# 2 ranks, graph: the shortest all-reduce takes 2.5 times a flag's way",
    ]


def test_ratios_are_of_one_collective() -> None:
    rows = [row("pycoll", 8, 3.0), row("nccl", 8, 6.0) | {"collective": "allgather"}]
    assert figures.ratios(rows) == []
    rows.append(row("pycoll", 8, 9.0) | {"collective": "allgather"})
    assert list(figures.summary(rows)) == [
        "# 2 ranks, graph, allgather: latency up to 64 KiB at most 1.50 of NCCL's",
    ]


def bench(*given: str, script: str = "one_gpu", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / f"{script}.py"), *given],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
    )


@pytest.mark.native
@pytest.mark.parametrize("script", ["one_gpu", "many_gpus"])
def test_without_a_gpu_nothing_is_measured(tmp_path: Path, script: str) -> None:
    from pycoll.runtime.native import cuda

    if not cuda.missing():
        pytest.skip("this machine has a GPU")
    done = bench("--output", str(tmp_path / "out.json"), script=script)
    assert done.returncode == 1
    assert done.stderr.startswith("not measured: libcuda.so.1 was not found")
    assert not (tmp_path / "out.json").exists()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NCCL."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nccl") / nccl.SONAME
    source = str(Path(__file__).with_name("fakenccl.c"))
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", str(path), source, "-ldl"], check=True)
    return path


def test_a_library_tells_its_version(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nccl.Nccl(str(library))
    assert found.version == "2.30.7"
    found.require_sharing()
    monkeypatch.setenv("FAKENCCL_VERSION", "22809")
    older = nccl.Nccl(str(library))
    with pytest.raises(UnavailableError, match=r"NCCL 2\.28\.9 .*, want 2\.30\.7 or later"):
        older.require_sharing()
    with pytest.raises(TransportError, match="ncclCommInitAll: 4: invalid argument"):
        found.all([0, 0])  # NCCL_MULTI_RANK_GPU_ENABLE is not set


def test_no_library_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"NCCL does not load .*pip install"):
        nccl.Nccl(str(tmp_path / "libnccl.so.2"))


@pytest.mark.native
@needs_stand_in
def test_a_run_over_the_stand_ins(tmp_path: Path, library: Path) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--max", "512", "--factor", "64", "--repeats", "2", "--ranks", "2"]
    more = fakecuda.environment()
    both = ["--nccl", str(library), "--modes", "eager", "--output", str(output)]
    done = bench(*given, *both, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert {"commit", "machine", "versions", "method", "form"} <= result["meta"].keys()
    assert result["meta"]["versions"]["nccl"] == "2.30.7"
    assert result["meta"]["machine"]["gpu"] == "Stand-in GPU"
    assert [(r["library"], r["nbytes"]) for r in result["rows"]] == [
        ("pycoll", 8),
        ("nccl", 8),
        ("pycoll", 512),
        ("nccl", 512),
    ]
    for found in result["rows"]:
        assert found["wrong"] == 0
        assert found["floor_us"] > 0
        assert found["hop_us"] > 0
        assert found["hops"] == pytest.approx(found["time_us"]["median"] / found["hop_us"])
        assert found["time_us"]["min"] <= found["time_us"]["median"] <= found["time_us"]["p99"]
    for own, theirs in (result["rows"][:2], result["rows"][2:]):
        assert (own["algorithm"], own["protocol"]) == ("one_shot", "LL")
        assert own["threads"] >= 1
        assert own["blocks"] == own["instances"] >= 1
        assert own["blocks_floor_us"] > 0
        assert theirs["blocks_at_most"] == 32
        assert "blocks" not in theirs
    assert [entry["nbytes"] for entry in result["ratios"]] == [8, 512]
    assert "# 2 ranks, eager: latency up to 64 KiB" in done.stdout


@pytest.mark.native
@needs_stand_in
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_every_collective_over_the_stand_ins(tmp_path: Path, library: Path, mode: str) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--sizes", "600", "--repeats", "1", "--ranks", "3", "--modes", mode]
    given += ["--collective", ",".join(arguments.COLLECTIVES), "--output", str(output)]
    # What the stand-in for NCCL does is not captured.
    given += ["--nccl", str(library)] if mode == "eager" else ["--alone"]
    done = bench(*given, **fakecuda.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(output.read_text())["rows"]
    libraries = ("pycoll", "nccl") if mode == "eager" else ("pycoll",)
    want = [(name, library) for name in arguments.COLLECTIVES for library in libraries]
    assert [(row["collective"], row["library"]) for row in rows] == want
    assert {row["wrong"] for row in rows} == {0}
    assert {row["nbytes"] for row in rows} == {600}


@pytest.mark.native
@needs_stand_in
def test_every_collective_of_ranks_with_a_gpu_each(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--alone", "--sizes", "64K,600", "--repeats", "1", "--modes", "graph"]
    given += ["--collective", ",".join(arguments.COLLECTIVES), "--output", str(output)]
    command = [
        sys.executable,
        "-m",
        "pycoll",
        "run",
        "-n",
        "2",
        str(BENCH / "many_gpus.py"),
        *given,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **fakecuda.environment(devices=2)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(output.read_text())["rows"]
    assert [(row["collective"], row["nbytes"]) for row in rows] == [
        (name, nbytes) for name in arguments.COLLECTIVES for nbytes in (64 << 10, 600)
    ]
    assert {row["wrong"] for row in rows} == {0}
    assert {row["transport"] for row in rows} == {"cuda"}
    assert all("floor_us" not in row for row in rows)  # of one GPU's memory


@pytest.mark.native
@needs_stand_in
def test_arrays_of_empty_are_measured_where_they_lie(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--sizes", "64K", "--repeats", "1", "--ranks", "2", "--modes", "eager"]
    given += ["--collective", "allreduce,broadcast,gather", "--alone", "--output", str(output)]
    own = bench(*given, **fakecuda.environment())
    assert own.returncode == 0, own.stdout + own.stderr
    before = json.loads(output.read_text())["rows"]
    mapped = bench(*given, "--empty", **fakecuda.environment())
    assert mapped.returncode == 0, mapped.stdout + mapped.stderr
    after = json.loads(output.read_text())["rows"]
    assert [row["wrong"] for row in before + after] == [0] * 6
    assert {row["arrays"] for row in before} == {"own"}
    assert {row["arrays"] for row in after} == {"empty"}
    assert (before[0]["algorithm"], after[0]["algorithm"]) == ("one_shot", "two_shot")
    assert before[0]["protocol"] in ("LL", "Simple")
    assert after[0]["protocol"] == "direct"


@pytest.mark.native
def test_a_library_that_lacks_a_collective_says_so(library: Path) -> None:
    found = nccl.Nccl(str(library))
    with pytest.raises(UnavailableError, match=r"NCCL 2\.30\.7 .* has no ncclPutSignal"):
        found._call("ncclPutSignal")


@pytest.mark.native
@needs_stand_in
def test_graphs_of_pycolls_calls(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    # Longer than what passes through pinned memory at once, and far longer than any slot.
    given = ["--stand-in", "--min", "10M", "--max", "10M", "--repeats", "1", "--ranks", "2"]
    given += ["--alone", "--blocks", "4"]
    given += ["--modes", "graph", "--output", str(output)]
    done = bench(*given, **fakecuda.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(output.read_text())["rows"]
    assert (found["mode"], found["wrong"]) == ("graph", 0)
    assert found["calls"] % 16 == 0


@pytest.mark.native
@needs_stand_in
def test_what_was_measured_is_there_whoever_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--alone", "--modes", "eager", "--ranks", "2", "--repeats", "1"]
    given += ["--sizes", ",".join(["8"] * 10_000), "--output", str(output)]
    command = [sys.executable, "-u", str(BENCH / "one_gpu.py"), *given]
    more = fakecuda.environment()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(3)]
        os.killpg(process.pid, signal.SIGKILL)
    rows = json.loads(output.read_text())["rows"]
    # Each is written once it has been shown.
    assert len(rows) >= len(shown) - 1
    assert {row["wrong"] for row in rows} == {0}


@pytest.mark.native
@needs_stand_in
def test_a_contest_ends_with_its_time(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    given = ["--stand-in", "--alone", "--modes", "eager", "--ranks", "2", "--repeats", "1"]
    given += ["--sizes", ",".join(["8"] * 10_000), "--seconds", "1", "--output", str(output)]
    done = bench(*given, **fakecuda.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# no time left for allreduce, 8 B, eager, and what follows" in done.stdout
    assert 0 < len(json.loads(output.read_text())["rows"]) < 10_000
