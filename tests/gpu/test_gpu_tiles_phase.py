"""The phase `tiles` over the stand-in: times mean nothing; ways, checks and labels do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakecuda
import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent / "phases"))

import kernels
import together

HERE = Path(__file__).parent

pytestmark = [pytest.mark.native]
own_process = pytest.mark.skipif(bool(fakecuda.lack()), reason=fakecuda.lack() or "-")
WAYS = {
    "gather": ["sequential", "copies", "tiles 1", "tiles 2"],
    "scatter": ["sequential", "tiles 1", "tiles 2"],
}


@own_process
def test_every_way_is_timed_and_what_is_paced_says_so(tmp_path: Path) -> None:
    fakecuda.library()
    command = [sys.executable, str(HERE / "run_all.py"), "--stand-in", "--short", "--minutes", "4"]
    command += ["--output", str(tmp_path), "tiles"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    details = json.loads((tmp_path / "gpu.json").read_text())["phases"]["tiles"]["details"]
    plain, paced, torch = details.values()
    assert list(details) == [
        "kernel, 256 x 16 x 128",
        "kernel, 256 x 16 x 128, paced",
        "torch, 256 x 16 x 128",
    ]
    assert "torch finds no GPU" in torch or "torch does not load" in torch
    for found in (plain, paced):
        assert {kind: list(each["ways_us"]) for kind, each in found.items()} == {
            kind: WAYS[kind] for kind in ("scatter", "gather")
        }
        for each in found.values():
            assert {len(times) for times in each["ways_us"].values()} == {5}
            assert each["compute_us"]
            assert each["collective_us"]
            assert each["verdict"]
    for kind in WAYS:
        assert "paced at 450 GB/s: no measurement of a link" in paced[kind]["note"]
        assert plain[kind]["note"] == "no link lies between the ranks"


PLANTED = {
    "a tile of another rank": ("a[tile * each :]", "a[:]"),
    "a product that is not made": ("self._enqueue(a.address, c, a.shape[0], 1, 0, stream)", "pass"),
}


@own_process
@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_result_is_found(tmp_path: Path, fault: str) -> None:
    there, planted = PLANTED[fault]
    text = (HERE / "phases" / "tiles.py").read_text()
    assert text.count(there) == 1
    script = tmp_path / "tiles.py"
    script.write_text(text.replace(there, planted))
    command = [sys.executable, str(script), "--stand-in", "--short", "--seconds", "60"]
    path = os.pathsep.join([str(HERE), str(HERE / "phases"), str(HERE.parents[1])])
    env = os.environ | fakecuda.environment() | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 1
    assert "the result is another" in done.stderr


@pytest.mark.fake_cuda
def test_torch_in_the_place_of_the_kernel() -> None:
    """By the torch that is played, as the real one has no GPU here; whole numbers of float16."""
    pytest.importorskip("torch")
    import played_torch
    import tiles

    kernels.take_any()
    seen: list[bool] = []
    run: Any = SimpleNamespace(
        device=0, stand_in=True, short=True, check=lambda good, text: seen.append(good)
    )

    def rank(comm: Any) -> Any:
        played_torch.Gpu()
        return tiles.rank(comm, run, "torch", (256, 16, 128))

    with played_torch.played():
        found = together.spawn(rank, 2)[0]
    assert {kind: list(each.ways) for kind, each in found.items()} == WAYS
    assert seen == [True] * (2 * 2 * 7)
    assert fakecuda.remarks() == []
