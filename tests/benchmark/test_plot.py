"""The picture, and what is said where it cannot be drawn."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from pycoll.benchmark import plot
from pycoll.errors import UnavailableError

META = {
    "machine": {"cpu": "a machine", "cores": 2},
    "versions": {"python": "3", "pycoll": "0.1"},
    "date": "2026-11-22T10:00:00+00:00",
}


def test_without_matplotlib_a_picture_is_refused_with_what_mends_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnavailableError, match=r"--plot needs matplotlib.*; pip install matplotl"):
        plot.require()


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_several_launches_of_several_libraries_become_one_picture(tmp_path):
    rows = [
        {
            "library": library,
            "collective": "allreduce",
            "algorithm": algorithm,
            "call": "call",
            "arrays": "numpy",
            "nbytes": nbytes,
            "op": "sum",
            "dtype": "float32",
            "ranks": 2,
            "busbw_GBps": nbytes / 1e3,
            "time_us": {"min": 1.0, "median": 2.0 + launch, "p99": 5.0 if launch else None},
        }
        for library, algorithm in (("pycoll", "ring"), ("pycoll", "two_shot"), ("mpi4py", "-"))
        for nbytes in (8, 64, 512)
        for launch in range(2)
    ]
    path = tmp_path / "p.svg"
    plot.plot(rows, path, META)
    text = path.read_text()
    assert "2 cores of a machine" in text
    assert "2026-11-22" in text
    for words in ("busbw (GB/s)", "8 B", "512 B", "pycoll ring", "pycoll two_shot", "mpi4py"):
        assert words in text


def test_sizes_are_named_in_binary_units():
    names = [plot.size_name(n) for n in (8, 1024, 1536, 4 << 20, 1 << 30)]
    assert names == ["8 B", "1 KiB", "1.5 KiB", "4 MiB", "1 GiB"]


def test_the_caption_says_on_what_machine_and_when_and_what_was_wrong_with_it():
    text = plot.caption({**META, "warnings": ["4 ranks share 2 cores"]})
    assert text == "2 cores of a machine, pycoll 0.1, 2026-11-22; 4 ranks share 2 cores"
