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

from pycoll.errors import TransportError, UnavailableError

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "gpu"
needs_stand_in = pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")


def test_plans_have_as_many_blocks_for_both_libraries() -> None:
    options = one_gpu.parse(["--min", "8", "--max", "1K", "--factor", "8"])
    plans = list(one_gpu.plans(options))
    assert [(plan.ranks, plan.blocks) for plan in plans] == [(2, 16), (4, 8)]
    assert plans[0].sizes == (8, 64, 512)
    assert one_gpu.environment(plans[1]) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": "8",
        "NCCL_MIN_CTAS": "8",
        "PYCOLL_CUDA_BLOCKS": "8",
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
    assert many_gpus.parse([]).max == 256 << 20


def test_the_floor_of_two_ranks() -> None:
    # A copy of 1 GB within the GPU in 0.5 ms reads and writes 4 TB/s: two ranks' 1 GB are 4 GB.
    assert figures.floor_seconds(2, 10**9, 10**9, 0.5e-3) == pytest.approx(1e-3)


def row(library: str, nbytes: int, median: float, mode: str = "graph") -> dict[str, Any]:
    time = {"min": median, "median": median, "p99": median}
    shared = {"ranks": 2, "mode": mode, "nbytes": nbytes, "library": library, "wrong": 0}
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
    assert "50.0% of the floor" in figures.line(rows[0])


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
        assert found["time_us"]["min"] <= found["time_us"]["median"] <= found["time_us"]["p99"]
    assert [entry["nbytes"] for entry in result["ratios"]] == [8, 512]
    assert "# 2 ranks, eager: latency up to 64 KiB" in done.stdout


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
    assert "# no time left for 8 B, eager, and what follows" in done.stdout
    assert 0 < len(json.loads(output.read_text())["rows"]) < 10_000
