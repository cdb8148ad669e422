"""`init_process_group("pycoll")` under torchrun, mpirun and srun's variables, with no import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MINIMAL = str(Path(__file__).parent / "jobs" / "minimal.py")


@pytest.mark.parametrize("end", ["destroy", "leave"])
def test_torchrun(jobs: Any, end: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    said = jobs.command([*command, "--nproc-per-node", "2", MINIMAL, end])
    assert "2 ranks, launched by torch" in said


@pytest.mark.mpi
def test_mpirun(jobs: Any, launcher: Any) -> None:
    probe = [launcher.python, "-c", "import torch, mpi4py"]
    if subprocess.run(probe, capture_output=True, check=False, env=jobs.environment()).returncode:
        pytest.skip(f"{launcher.name}'s Python has no torch: make torch")
    more = ["--oversubscribe"] if launcher.name == "openmpi" else []
    said = jobs.command([launcher.mpirun, *more, "-n", "2", launcher.python, MINIMAL])
    assert "2 ranks, launched by torch" in said


@pytest.mark.net
def test_ranks_of_two_hosts(jobs: Any, tmp_path: Path) -> None:
    from hosts import Hosts

    with Hosts(2) as hosts:
        common = {"WORLD_SIZE": "3", "MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29511"}
        ranks = [
            hosts.run(
                rank // 2,
                [
                    sys.executable,
                    str(Path(MINIMAL).with_name("beyond.py")),
                    str(tmp_path / "store"),
                ],
                env=jobs.environment(**common, RANK=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for rank in range(3)
        ]
        said = [rank.communicate(timeout=150)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], "\n".join(said)


def test_what_torch_cannot_find_it_says_itself(jobs: Any) -> None:
    code = (
        "import torch.distributed as dist\n"
        "try: dist.init_process_group('pycoll')\n"
        "except ValueError as error: print(error)"
    )
    assert "environment variable RANK expected" in jobs.command([sys.executable, "-c", code])


def test_importing_torch_loads_no_engine(jobs: Any) -> None:
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "assert dist.is_backend_available('pycoll')\n"
        "print(sorted(name for name in sys.modules if name.startswith('pycoll')))"
    )
    found = jobs.command([sys.executable, "-c", code]).strip()
    light = ["torch_backend", "torch_name"]
    assert found == str(
        ["pycoll", "pycoll.errors", "pycoll.interop", *(f"pycoll.interop.{name}" for name in light)]
    )


def test_spawned_ranks_need_no_variables(jobs: Any) -> None:
    code = (
        "import pycoll\n"
        "def rank():\n"
        "    import torch, torch.distributed as dist\n"
        "    dist.init_process_group('pycoll')\n"
        "    x = torch.ones(3)\n"
        "    dist.all_reduce(x)\n"
        "    dist.destroy_process_group()\n"
        "    return x.tolist()\n"
        "print(pycoll.spawn(rank, 2))"
    )
    assert str([[2.0] * 3] * 2) in jobs.command([sys.executable, "-c", code])
