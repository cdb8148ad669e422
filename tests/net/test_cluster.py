"""Jobs that mpirun starts on several hosts, as the benchmarks do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed: pip install mpi4py"
)
def test_mpirun_spreads_a_benchmark_over_hosts(
    launcher: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "bench"))
    from cluster import Spread

    against = ["mpi4py"] + ["gloo"] * (importlib.util.find_spec("torch") is not None)
    sweep = ["--min", "8", "--max", "64K", "--factor", "8192", "--repeats", "1"]
    with Hosts(2) as hosts:
        mpi = Spread(launcher.name, Path(launcher.mpirun).parents[1], hosts=hosts)
        more = [*sweep, "--against", ",".join(against)]
        result = mpi.bench(4, *more, timeout=250)
    assert result["meta"]["ranks"] == 4
    assert [row["library"] for row in result["rows"]] == ["pycoll", *against] * 2
    assert all(row["wrong"] == 0 for row in result["rows"])


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed: pip install mpi4py"
)
@pytest.mark.parametrize(
    ("collective", "sizes"),
    [
        ("bw", ["--min", "64K", "--max", "64K", "--window", "9"]),
        ("barrier", []),
        ("alltoallv", ["--min", "64K", "--max", "64K", "--overlap"]),
    ],
)
def test_what_is_no_plain_collective_is_right_between_hosts(
    root: Path, monkeypatch: pytest.MonkeyPatch, launcher: Any, collective: str, sizes: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(root / "bench"))
    from cluster import Spread

    few = [*sizes, "--repeats", "1", "--iters", "3", "--against", "mpi4py"]
    with Hosts(2) as hosts:
        mpi = Spread(launcher.name, Path(launcher.mpirun).parents[1], hosts=hosts)
        result = mpi.bench(4, *few, collective=collective, timeout=250)
    assert [row["library"] for row in result["rows"]] == ["pycoll", "mpi4py"]
    assert all(row["wrong"] == 0 for row in result["rows"])


def test_ranks_spread_evenly_or_not_at_all(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.syspath_prepend(str(root / "bench"))
    from cluster import Spread

    spread = Spread("openmpi", Path(sys.prefix), hosts=Hosts(2))
    with pytest.raises(ValueError, match="3 ranks do not spread evenly over 2 hosts"):
        spread.command(3)
