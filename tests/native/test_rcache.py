"""The registration cache: what it keeps, and that it never keeps what memory no longer is.

The registrar is the driver's own (``rcache.h``), so nothing here needs a device.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import compiled
import pytest

HERE = Path(__file__).parent
UNMAP = "memory/mem_events"
SOURCES = (
    "memory/rcache",
    UNMAP,
    "memory/mem_type",
    "gpu/driver/cuda",
    "gpu/driver/cuda_memory",
    "core/error",
)


def built(driver: str, sanitizer: str = "plain") -> Path:
    parts = compiled.parts(sanitizer, SOURCES)
    return compiled.driver(HERE / f"{driver}.c", sanitizer, parts)


def run(
    driver: Path, scenario: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [driver, scenario], capture_output=True, text=True, timeout=240, env=env, check=False
    )


@pytest.fixture(scope="module")
def watching() -> None:
    """Skip where the kernel does not let memory be watched: then nothing is kept."""
    missing = run(built("rcache"), "missing").stdout.strip()
    if missing:
        pytest.skip(missing)


of_kinds = pytest.mark.parametrize("kind", compiled.SANITIZERS)


@of_kinds
@pytest.mark.parametrize(
    "scenario", ["hit", "merge", "limit", "many", "use", "several", "file", "refused"]
)
@pytest.mark.usefixtures("watching")
def test_what_is_kept(kind: str, scenario: str) -> None:
    done = run(built("rcache", kind), scenario)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@of_kinds
@pytest.mark.parametrize(
    "scenario",
    [
        "remap",
        "discard",
        "move",
        "heap",
        "forks",
        "late",
        "window",
        "midway",
        "meanwhile",
        "unwatched",
        "mixed",
        "threads",
    ],
)
@pytest.mark.usefixtures("watching")
def test_no_registration_outlives_its_memory(kind: str, scenario: str) -> None:
    done = run(built("mem_events", kind), scenario)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@of_kinds
def test_nothing_is_kept_without_userfaultfd(kind: str) -> None:
    done = run(built("rcache", kind), "without")
    assert (done.returncode, done.stdout, done.stderr) == (0, "without\n", "")


@pytest.mark.usefixtures("watching")
def test_the_watcher_asks_for_changes_in_flight(tmp_path: Path) -> None:
    """A mutant that only reads the events which are there already meets a stale registration."""
    unit, *others = compiled.parts("plain", sorted(SOURCES, key=lambda name: name != UNMAP))
    source = unit.source.read_text()
    asked = "for (uint32_t i = 0; change_in_flight(monitor.fd); i++) {"
    assert asked in source
    (tmp_path / "mem_events.c").write_text(
        source.replace(asked, f"drain();\n    return true;\n    {asked}")
    )
    mutant = replace(unit, source=tmp_path / "mem_events.c")
    done = run(compiled.driver(HERE / "mem_events.c", "plain", [mutant, *others]), "window")
    assert done.returncode == 1
    assert "word_at" in done.stderr


def cuda(lacking: str = "") -> dict[str, str]:
    """Return an environment where NVIDIA's driver is a stand-in that lacks something."""
    which = "OLDER" if lacking == "older" else "NEWER"
    unit = compiled.Unit(HERE / "cuda.c", (*compiled.C, "-fPIC", f"-D{which}_DRIVER"))
    library = compiled.linked("libcuda.so.1", [unit], "-shared")
    return {"LD_LIBRARY_PATH": str(library.parent), "CUDA_STANDIN": lacking}


@pytest.mark.parametrize(
    ("scenario", "lacking"),
    [
        ("kept", ""),
        ("pooled", "pooled"),
        ("other", ""),
        ("managed", "managed"),
        ("staged", ""),
        ("flush", ""),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "asan"])
def test_memory_of_a_gpu(kind: str, scenario: str, lacking: str) -> None:
    done = run(built("mem_type", kind), scenario, cuda(lacking))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{scenario}\n", "")


@pytest.mark.parametrize(
    ("lacking", "dmabuf"),
    [
        ("nogpu", "NVIDIA's driver has no GPU: see nvidia-smi"),
        ("nodmabuf", "install NVIDIA's open kernel modules"),
        ("older", "install NVIDIA's driver 515 or later"),
    ],
)
def test_why_a_gpu_is_not_reached(lacking: str, dmabuf: str) -> None:
    done = run(built("mem_type"), "missing", cuda(lacking))
    assert done.returncode == 0, done.stderr
    assert dmabuf in done.stdout.split("|")[0]


def test_without_the_driver_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("this is no library")
    done = run(built("mem_type"), "absent", {"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("libcuda.so.1 was not found: install NVIDIA's driver|")
