"""A short walk of random kills; walk.py plays longer ones."""

from __future__ import annotations

import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

WALK = Path(__file__).with_name("walk.py")


@pytest.mark.parametrize("way", ["shm", "tcp", "mixed"])
def test_every_survivor_names_the_rank_that_was_killed(way: str) -> None:
    walk(way)


@pytest.mark.stand_in
def test_the_same_over_rdma() -> None:
    walk("verbs")


@pytest.mark.skipif(not find_library("fabric"), reason="no libfabric: apt-get install libfabric1")
def test_the_same_over_libfabric() -> None:
    walk("libfabric")


def walk(way: str) -> None:
    done = subprocess.run(
        [sys.executable, str(WALK), "--jobs", "12", "--ways", way],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"jobs": 12, "survivors": 36' in done.stdout
