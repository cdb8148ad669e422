"""In the source folder the sources hide an installed pycoll: what is said, and what cures it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

USE = "import pycoll; print(pycoll.init().rank)"


@pytest.fixture
def sources(root: Path, tmp_path: Path) -> Path:
    """The sources without an engine."""
    left = shutil.ignore_patterns("_native*.so", "__pycache__", "_native_missing.txt")
    for name in ("pycoll", "native"):
        shutil.copytree(root / name, tmp_path / "sources" / name, ignore=left)
    return tmp_path / "sources"


@pytest.fixture
def site(root: Path, tmp_path: Path) -> Path:
    """A folder into which pycoll was installed, as pip leaves it."""
    site = tmp_path / "site"
    shutil.copytree(root / "pycoll", site / "pycoll", ignore=shutil.ignore_patterns("__pycache__"))
    record = site / "pycoll-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: pycoll\nVersion: 0.1.0\n")
    return site


def run(cwd: Path, *arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    # -S and the path: numpy without the editable pycoll that these tests themselves run from.
    path = [*([site] if site else []), sysconfig.get_path("purelib")]
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_sources_that_hide_an_installed_engine_are_named(sources: Path, site: Path) -> None:
    hidden = run(sources, "-c", USE, site=site)
    assert hidden.returncode == 1
    last = hidden.stderr.splitlines()[-1]
    assert f"imports pycoll from {sources / 'pycoll'}, which has no engine" in last
    assert f"not the one that is installed in {site / 'pycoll'}" in last
    bench = run(sources, "-m", "pycoll", "bench", "allreduce", "--max", "8", site=site)
    assert bench.returncode == 2
    assert f"installed in {site / 'pycoll'}" in bench.stderr


def test_the_cures_that_are_named_do_cure(sources: Path, site: Path, tmp_path: Path) -> None:
    elsewhere = run(tmp_path, "-c", USE, site=site)
    for cured in (elsewhere, run(sources, "-P", "-c", USE, site=site)):
        assert (cured.returncode, cured.stdout) == (0, "0\n"), cured.stderr


def test_sources_alone_are_to_be_built(sources: Path) -> None:
    told = run(sources, "-c", USE)
    assert "to mend it: apt-get install gcc python3-dev, then make build" in told.stderr


@pytest.mark.parametrize(
    "command",
    [
        "verify ring --size 4",
        "show ring --size 4 --program",
        "explain allreduce --nbytes 64 --size 4",
        "plan allreduce --nbytes 64 --size 4",
    ],
)
def test_what_starts_no_rank_needs_no_engine(sources: Path, command: str) -> None:
    done = run(sources, "-m", "pycoll", *command.split())
    assert (done.returncode, done.stderr) == (0, "")
