"""The picture, and what is said where it cannot be drawn."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from pycoll.cli import plot
from pycoll.errors import UnavailableError


def test_without_matplotlib_the_command_says_so_before_it_measures(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnavailableError, match=r"--plot needs matplotlib.*; pip install matplotl"):
        plot.require()
    done = cli("bench", "allreduce", "--plot", str(tmp_path / "p.png"))
    assert done.code == 2
    assert "pip install matplotlib" in done.err


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
            "time_us": {"min": 1.0, "median": 2.0 + launch, "p99": 5.0},
        }
        for library, algorithm in (("pycoll", "ring"), ("pycoll", "two_shot"), ("mpi4py", "-"))
        for nbytes in (8, 64, 512)
        for launch in range(2)
    ]
    path = tmp_path / "p.png"
    plot.plot(rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")
