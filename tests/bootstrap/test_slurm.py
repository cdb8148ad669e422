"""srun's environment, as Slurm 20 to 24 give it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ports
import pytest

from pycoll.bootstrap import launcher, mpi, slurm, torchrun
from pycoll.config import MOST_RANKS, Config
from pycoll.errors import BootstrapError, UsageError

SECONDS = 60.0  #: generous: reached only by a hang
ROOT = Path(__file__).parents[2]
NOTHING = Config.load({})

#: Of task 0; the allocation has more nodes than the step.
ENVIRONMENT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NODELIST": "node[01-08]",
    "SLURM_CLUSTER_NAME": "mars",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "node05",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_SRUN_COMM_HOST": "10.0.0.1",
}
TWO_NODES = {**ENVIRONMENT, "SLURM_STEP_NODELIST": "node[05,07]"}

PROGRAM = """
from pycoll.bootstrap import detect
bootstrap = detect()
got = bootstrap.allgather(b"%d" % bootstrap.rank)
print(bootstrap.name, bootstrap.rank, bootstrap.size, b" ".join(got))
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        process.kill()
        process.communicate()


def start(environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs(processes: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    return [process.communicate(timeout=SECONDS) for process in processes]


def test_tasks_of_one_node_need_no_secret(processes):
    job = {**ENVIRONMENT, "SLURM_JOB_ID": str(os.getpid())}
    processes += [start({**job, "SLURM_PROCID": str(rank)}) for rank in range(2)]
    assert outputs(processes) == [(f"slurm {rank} 2 b'0 1'\n", "") for rank in range(2)]


def test_tasks_of_several_nodes_meet_with_a_secret(processes):
    job = {
        **ENVIRONMENT,
        "SLURM_STEP_NODELIST": "localhost,elsewhere.invalid",
        "SLURM_JOB_ID": str(os.getpid()),
        "PYCOLL_SECRET": "5a" * 32,
    }
    processes += [start({**job, "SLURM_PROCID": str(rank)}) for rank in range(2)]
    assert outputs(processes) == [(f"slurm {rank} 2 b'0 1'\n", "") for rank in range(2)]


def test_a_port_that_is_taken_is_passed_over(processes):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        reserved = f"{taken.getsockname()[1]},{ports.free()}"
        job = {**ENVIRONMENT, "SLURM_STEP_RESV_PORTS": reserved}
        processes += [start({**job, "SLURM_PROCID": str(rank)}) for rank in range(2)]
        assert outputs(processes) == [(f"slurm {rank} 2 b'0 1'\n", "") for rank in range(2)]


def test_several_nodes_without_a_secret_are_refused_with_the_cure():
    with pytest.raises(
        UsageError,
        match=r"^PYCOLL_SECRET is not set, and this step has 2 nodes, .*: "
        r"srun --export=ALL,PYCOLL_SECRET=\$\(openssl rand -hex 32\) \.\.\.$",
    ):
        slurm.meet(NOTHING, TWO_NODES)


def test_the_largest_job_is_met_and_no_larger_one(monkeypatch):
    monkeypatch.setattr(slurm.environment, "meet_at", lambda *met: met)
    largest = {**ENVIRONMENT, "SLURM_STEP_NUM_TASKS": str(MOST_RANKS)}
    last = {**largest, "SLURM_PROCID": str(MOST_RANKS - 1)}
    assert slurm.meet(NOTHING, last)[2:4] == (MOST_RANKS - 1, MOST_RANKS)
    with pytest.raises(BootstrapError, match=rf"number of tasks is '{MOST_RANKS + 1}', want an"):
        slurm.meet(NOTHING, {**largest, "SLURM_STEP_NUM_TASKS": str(MOST_RANKS + 1)})


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"SLURM_STEP_NODELIST": "node[05,07]"}, "node05"),
        ({"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": "a[2-3]"}, "a2"),
        (
            {
                "SLURM_STEP_NODELIST": "node[05,07]",
                "SLURM_DISTRIBUTION": "arbitrary",
                "SLURM_ARBITRARY_NODELIST": "node07,node05,node05",
            },
            "node07",
        ),
        ({}, "127.0.0.1"),
    ],
)
def test_where_task_0_is(monkeypatch, changes, host):
    seen: list[object] = []
    monkeypatch.setattr(slurm.environment, "meet_at", lambda *args: seen.append(args))
    config = Config.load({"PYCOLL_SECRET": "5a" * 32})
    slurm.meet(config, {**ENVIRONMENT, **changes, "SLURM_PROCID": "1"})
    ((where, choice, rank, size, secret, timeout),) = seen
    assert (where, rank, size, secret, timeout) == (host, 1, 2, config.secret, 300)
    assert len(set(choice)) == 16


def test_the_address_setting_overrides_node_and_ports(monkeypatch):
    seen: list[object] = []
    monkeypatch.setattr(slurm.environment, "meet_at", lambda *args: seen.append(args))
    config = Config.load({"PYCOLL_SECRET": "5a" * 32, "PYCOLL_ADDRESS": "gate:4000"})
    slurm.meet(config, TWO_NODES)
    assert seen[0][:2] == ("gate", [4000])


def test_ports_differ_between_jobs_and_steps_and_reserved_ones_come_first():
    assert slurm.ports(b"mars 1 0", "") != slurm.ports(b"mars 1 1", "")
    assert slurm.ports(b"a", "") != torchrun.ports(b"a")
    assert slurm.ports(b"a", "12000-12002,13000") == [12000, 12001, 12002, 13000]
    assert len(slurm.ports(b"a", "12000-12999")) == 16


def test_a_step_of_one_task_meets_nobody(no_leak):
    star = slurm.meet(NOTHING, {**ENVIRONMENT, "SLURM_STEP_NUM_TASKS": "1"})
    assert (star.rank, star.size, len(star.links)) == (0, 1, 0)


BATCH = {
    name: value
    for name, value in ENVIRONMENT.items()
    if "STEP" not in name  # a batch script: as if it were task 0, but not in a step
}
PMI2 = {**ENVIRONMENT, "PMI_RANK": "0", "PMI_SIZE": "2"}
PMIX = {**ENVIRONMENT, "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.4711.2"}
#: Under an mpirun whose daemons are a step of one task for each node.
OPENMPI = {**ENVIRONMENT, "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9"}
HYDRA = {**ENVIRONMENT, "PMI_RANK": "9", "PMI_SIZE": "16"}
TORCH = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "with_mpi4py", "without"),
    [
        (ENVIRONMENT, "slurm", "slurm"),
        (TWO_NODES, "slurm", "slurm"),
        (BATCH, "single", "single"),
        ({**ENVIRONMENT, "SLURM_STEP_NUM_TASKS": "1"}, "single", "single"),
        ({**BATCH, "SLURM_STEPID": "0", "SLURM_NTASKS": "3"}, "slurm", "slurm"),
        (PMI2, "mpi4py", "slurm"),
        (PMIX, "mpi4py", "slurm"),
        (OPENMPI, "mpi4py", "mpi4py"),
        (HYDRA, "mpi4py", "mpi4py"),
        (TORCH, "torchrun", "torchrun"),
    ],
)
def test_when_srun_is_the_launcher(monkeypatch, environ, with_mpi4py, without):
    for installed, want in ((True, with_mpi4py), (False, without)):
        monkeypatch.setattr(mpi, "installed", lambda found=installed: found)
        assert launcher(NOTHING, environ) == want


def test_mpi4py_is_looked_for_without_importing_it():
    code = (
        "import sys; from pycoll.bootstrap import mpi; mpi.installed(); "
        "assert 'mpi4py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=SECONDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "0"}, r"^slurm: number of tasks is '0', want an integer from 1"),
        ({"SLURM_STEP_NUM_TASKS": "x"}, r"^slurm: number of tasks is 'x', want an integer from 1"),
        ({"SLURM_PROCID": "2"}, r"^slurm: SLURM_PROCID is '2', want an integer from 0 to 1$"),
        ({"SLURM_STEP_NODELIST": "n[3-"}, r"^node list 'n\[3-' has the item"),
        (
            {"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""},
            r"^slurm: SLURM_STEP_NODELIST is not set, want the nodes of this step$",
        ),
        ({"SLURM_STEP_RESV_PORTS": "a-b"}, r"^node list '\[a-b\]' has the range"),
        ({"SLURM_STEP_RESV_PORTS": "70000"}, r"^slurm: SLURM_STEP_RESV_PORTS is '70000', want 1 t"),
    ],
)
def test_a_bad_variable(changes, message):
    with pytest.raises(BootstrapError, match=message):
        slurm.meet(NOTHING, {**ENVIRONMENT, **changes})
